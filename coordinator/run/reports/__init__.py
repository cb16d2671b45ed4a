"""Nodes' reports of their work: whether they can be true, and their sums.

The consequences for membership are decided in membership/.
"""
