"""The trainer's life: take a view, prepare for it, train in it, leave it.

How a round or a pipeline works is decided in their rooms.
"""
