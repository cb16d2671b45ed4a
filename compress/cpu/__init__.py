"""Compiled loops for CPUs (the optional extra ``fast``), with the bytes of the torch code.

Only speed is decided here: without numba the torch code runs and gives the same bytes.
"""
