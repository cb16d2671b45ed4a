"""Tensors of safetensors files, read by name and range, and a model folder's weights out of them.

``training.changes`` decides which node reads them, and when.
"""
