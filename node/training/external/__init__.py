"""A training loop of a person's own in the place of ours: ``farflung.group``.

What it computes is the person's.
"""
