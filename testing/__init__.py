"""farflung inside one process, for tests and benchmarks: threads for nodes and queues for the wire.

The same trainer runs here as in a real run; only the wire and the coordinator are stand-ins.
"""
