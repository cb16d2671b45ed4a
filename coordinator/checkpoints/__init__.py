"""Checkpoints at the coordinator: received, verified, kept, pruned, copied to targets.

Which file counts is decided here; when a checkpoint is made is decided in membership.
"""
