"""Checkpoints of a run: which files are accepted, their copies at a remote target, and where a start goes on from.

Files are written and read in checkpoints/.
"""
