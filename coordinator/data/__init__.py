"""The data of a run: documents read, tokenised, cut into samples, and served to nodes by name and range.

``job.data.sampling`` decides which step trains which sample.
"""
