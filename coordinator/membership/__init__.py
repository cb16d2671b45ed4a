"""Who is in the run and which view they train: a pure state machine and its parts.

Events in; effects and a sentence out. No clock, no socket, no database.
"""
