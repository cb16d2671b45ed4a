"""A spare follows a place while others train in it: a snapshot, then the rounds that the group applies.

The coordinator decides when the spare gets the place.
"""
