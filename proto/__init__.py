"""The words on the wire: protobuf messages, tensor frames, the job. Nothing here thinks."""

PROTOCOL = 1
"""Version of the wire. Nodes and coordinator with different numbers refuse each other."""
