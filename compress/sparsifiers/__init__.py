"""Codecs that send some elements: top-k, random runs, and how their positions are written.

This room decides which elements are sent; the caller decides what happens to the others (error feedback).
"""
