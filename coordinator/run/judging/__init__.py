"""What follows from the judgements on a run: a node that others call bad leaves, a run that no longer improves ends.

Who is at fault is decided in membership/faults.
"""
