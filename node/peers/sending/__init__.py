"""The sending end of a link: what waits, in which order and over how many connections it goes.

The trainer decides what is sent.
"""
