"""State as safetensors files: a stage's shard of a checkpoint, and what a node keeps on its own disk.

``training`` decides when a file is written, the coordinator which checkpoint is complete.
"""
