"""Connections between nodes: greeting, streams opened from either side, what is counted and measured.

Both ends below: ``sending`` and ``receiving``.
"""
