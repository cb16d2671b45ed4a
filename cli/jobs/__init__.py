"""Job files for people: the commented file that ``farflung job init`` writes, and whether a job's codecs exist.

What a job may say is decided in job/.
"""
