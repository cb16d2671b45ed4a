"""farflung inside one process, for tests and benchmarks: threads for nodes and queues for the wire.

The trainer is the one of a real run; only the wire and the coordinator are replaced.
"""
