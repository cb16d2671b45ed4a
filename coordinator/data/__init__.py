"""The data of a run: documents read, tokenised, cut into samples, and served to nodes by name and range.

Which sample is trained when is ``job.data.sampling``'s.
"""
