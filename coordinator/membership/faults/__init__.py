"""Which node is at fault when nodes disagree, refuse each other's messages, or stand still: pure functions of their
reports.

The consequences for the run are decided in phases/.
"""
