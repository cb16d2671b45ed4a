"""The commands that need no run: write a job file, plan a cluster, compare codecs, examine this machine.

What these commands do is decided in cli/ and in the rooms that it calls.
"""
