"""Checkpoints at the coordinator: received, verified, kept, pruned, copied to targets.

Which file counts is decided here; when one is made is membership's.
"""
