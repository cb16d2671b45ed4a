"""A whole run on this machine, as real processes: a coordinator and N nodes.

This room starts, watches and ends the processes; the coordinator runs the run.
"""
