"""A member of a view: whom it exchanges with, its commit points, and what it has learnt and not sent.

``modes`` decides when a round begins.
"""
