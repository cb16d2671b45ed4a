"""Why a file of a checkpoint is not taken."""

from __future__ import annotations

from ...proto.errors import FarflungError


class ShardRefused(FarflungError):
    """A shard cannot be taken; the sentence goes to its sender."""


class NotWritten(ShardRefused):
    """The disk does not take it."""
