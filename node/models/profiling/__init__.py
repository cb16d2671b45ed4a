"""What a layer of a model costs: operations, bytes that travel, memory that it keeps.

The scheduler decides which node gets which layers.
"""
