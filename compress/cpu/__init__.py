"""Compiled loops for CPUs (the optional extra ``fast``), with the bytes of the torch code.

They affect only speed: without numba the torch code runs and gives the same bytes.
"""
