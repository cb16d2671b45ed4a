"""Who is at fault when nodes disagree, refuse each other, or stand still: pure, from what they say and what is known.

What follows for the run is decided in phases/.
"""
