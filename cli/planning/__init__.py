"""``farflung plan``: from the typed options to a plan for a cluster, and the memory that each of its nodes needs.

The scheduler makes the plan.
"""
