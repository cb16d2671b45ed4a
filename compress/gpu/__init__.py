"""Triton kernels (the optional extra ``kernels``), with the bytes of the CPU code.

They affect only speed.
"""
