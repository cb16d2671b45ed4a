"""The shell around the membership machine: it carries orders and reports, and remembers.

Nothing about membership is decided here.
"""
