"""What coordinator and nodes say to each other: .proto files and the code made of them, and what both ends share.

``messages`` has the bytes, ``words`` what a word may be, ``connections`` gRPC, ``process`` what every process does.
Nothing is decided here but what is refused at the border.
"""

PROTOCOL = 6
"""Version of the wire: a run speaks its coordinator's. Nodes that do not speak it are refused."""

OLDEST_PROTOCOL = 6
"""The oldest that this version still speaks, so that nodes can be upgraded before their coordinator is."""
