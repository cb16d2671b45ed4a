"""Tensors to few bytes and back."""
