"""Checkpoints of a run: which files are accepted, their copies at a remote target, and from which one a start resumes.

Files are written and read in checkpoints/.
"""
