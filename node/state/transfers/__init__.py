"""State that goes from node to node: who is asked for which piece, and who serves it.

Who takes up which place is the plan's.
"""
