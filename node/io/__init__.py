"""The I/O process: one event loop that owns every connection of the node, and its control stream.

Links between nodes are ``peers``'.
"""
