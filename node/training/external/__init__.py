"""A training loop of a person's own in the place of ours: ``farflung.group``.

The user's loop decides what is computed.
"""
