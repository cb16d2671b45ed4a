"""What a job computes, holds and sends, layer by layer, and the order in which a node does it.

Where the layers lie on a network is not decided here.
"""
