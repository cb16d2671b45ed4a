"""The errors for a file of a checkpoint that is not accepted."""

from __future__ import annotations

from ...proto.errors import FarflungError


class ShardRefused(FarflungError):
    """A shard is not accepted; the message is sent to its sender."""


class NotWritten(ShardRefused):
    """The coordinator's disk can't store the shard."""
