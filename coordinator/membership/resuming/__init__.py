"""The position from which the next view continues, and what its members have to fetch, restore or hand over.

phases/ and the planner decide which nodes are in it.
"""
