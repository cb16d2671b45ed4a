"""The files that a job names, read as streams: which there are, the documents in them, the tokens in them.

Nothing is tokenised here, and no file is ever in memory whole.
"""
