"""What a layer of a model costs: operations, bytes that travel, memory that it keeps.

Who gets which layers is the scheduler's.
"""
