"""What coordinator and nodes say to each other: .proto files and the code made of them, and what both ends share.

``messages`` encodes and decodes bytes, ``words`` checks strings from other machines, ``connections`` sets up gRPC,
``process`` has helpers for every process. The only decision made here is which input from other machines is refused.
"""

PROTOCOL = 6
"""Version of the wire protocol: a run uses its coordinator's. A node that does not support it is refused."""

OLDEST_PROTOCOL = 6
"""The oldest protocol that this version still supports, so that nodes can be upgraded before their coordinator."""
