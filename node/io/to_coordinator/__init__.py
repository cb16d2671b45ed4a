"""All that goes between the I/O process and the coordinator: the control stream, artifacts, checkpoints, certificates.

What an order means is decided in ``training``; the links to other nodes are ``peers``'.
"""
