"""``farflung plan``: from the words that were typed to the plan of a cluster, and what each of its nodes holds.

The plan itself is the scheduler's.
"""
