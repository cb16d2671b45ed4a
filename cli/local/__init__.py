"""A whole run on this machine, as real processes: a coordinator and N nodes.

Starting, watching and ending the processes is decided here; the run itself is the coordinator's.
"""
