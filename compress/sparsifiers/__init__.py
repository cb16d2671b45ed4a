"""Codecs that send some elements: top-k, random runs, and how their positions are written.

Which elements are sent is decided here; what becomes of the others is the caller's (error feedback).
"""
