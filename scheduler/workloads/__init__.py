"""What a job computes, holds in memory and sends, layer by layer, and the order of a node's actions.

Which device has which layers is not decided here.
"""
