"""What the membership machine was given and did, kept as it happens, and run again from there.

Nothing is decided here: a recording that cannot be written costs the run nothing.
"""
