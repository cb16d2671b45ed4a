"""Finds the files that a job names, and reads the documents or tokens in them as streams.

Nothing is tokenised here, and no whole file is ever in memory.
"""
