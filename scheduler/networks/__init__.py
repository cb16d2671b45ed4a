"""Devices and the links between them: from a file, from words or from a run's measurements.

What a link's missing number is taken for is decided here; what is computed on them is not.
"""
