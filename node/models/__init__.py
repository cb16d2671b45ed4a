"""Models that can be cut anywhere: layers by name, stages, families, adapters, weights from files.

The plan decides which stage a node holds.
"""
