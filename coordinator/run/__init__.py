"""The I/O around the membership machine: it carries orders and reports, and stores the run.

Nothing about membership is decided here.
"""
