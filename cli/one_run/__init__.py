"""Requests to an existing run: its status, a live view of it, commands, a profile, a text, a checkpoint.

How an answer looks is decided in screen/; what a command does, by the coordinator.
"""
