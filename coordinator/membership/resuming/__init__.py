"""Where the next view takes up, and what its members have to fetch, restore or hand over.

Who may be in it is decided in phases/ and by the planner.
"""
