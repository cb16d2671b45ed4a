"""What is asked of a run that exists: its status, a watch of it, commands, a profile, a text, a checkpoint.

How an answer looks is the screens'; what a command does, the coordinator's.
"""
