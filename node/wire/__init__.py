"""The trainer's end of the node's I/O process: calls, messages and tensors in shared memory.

No connection is opened here.
"""
