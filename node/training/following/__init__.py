"""A spare follows a place while others train in it: a snapshot, then the rounds that the group applies.

When it gets the place is the coordinator's.
"""
