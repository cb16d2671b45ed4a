"""The sending end of a link: what waits, in which order and over how many connections it goes.

What is sent is the trainer's.
"""
