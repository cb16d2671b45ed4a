"""A step from its samples to its report, and what is due beside it: evaluations, checkpoints, texts.

``modes`` decides how a step ends.
"""
