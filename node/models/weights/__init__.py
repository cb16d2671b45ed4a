"""Tensors of safetensors files, read by name and range, and a model folder's weights out of them.

Who reads them, and when, is decided in ``training.changes``.
"""
