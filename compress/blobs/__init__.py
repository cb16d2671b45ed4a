"""Blobs from their bytes, and to them."""
