"""State that goes from node to node: who is asked for which piece, and who serves it.

The plan decides which node takes up which place.
"""
