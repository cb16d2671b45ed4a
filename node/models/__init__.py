"""Models that can be cut anywhere: layers by name, stages, families, adapters, weights from files.

Which stage a node holds is the plan's.
"""
