"""Connections between nodes: greeting, streams opened from either side, what is counted and measured.

The two ends of a link are in ``sending`` and ``receiving``.
"""
