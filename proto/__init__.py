"""The words on the wire: protobuf messages, tensor frames, the job. Nothing here thinks."""

PROTOCOL = 6
"""Version of the wire: a run speaks its coordinator's. Nodes that do not speak it are refused."""

OLDEST_PROTOCOL = 6
"""The oldest that this version still speaks, so that nodes can be upgraded before their coordinator is."""
