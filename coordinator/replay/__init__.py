"""Records the membership machine's events and their results, and runs recordings again.

Nothing is decided here. A recording that can't be written does not disturb the run.
"""
