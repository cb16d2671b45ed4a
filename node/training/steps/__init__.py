"""A step from its samples to its report, and what is due beside it: evaluations, checkpoints, texts.

How it ends is decided in ``modes``.
"""
