"""Tensors from main memory to a node's device, without waiting for it."""

from ...compress.blobs.pieces import onto

__all__ = ["onto"]
