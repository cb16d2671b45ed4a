"""Which nodes are in the run and which view they train: a pure state machine and its parts.

It takes events and returns effects and a sentence. No clock, no socket, no database.
"""
