"""Triton kernels (the optional extra ``kernels``), with the bytes of the CPU code.

Only speed is decided here.
"""
