"""State as safetensors files: a stage's shard of a checkpoint, and what a node keeps on its own disk.

When one is written, and which is complete, is decided in ``training`` and by the coordinator.
"""
