"""A file of a checkpoint that has arrived whole: its sender's metadata and the tensors in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...proto.control_pb2 import Shard
from .acceptance import Expected
from .manifest import position_in
from .refused import ShardRefused
from .tensor_header import look_into


def sender_metadata(shard: Shard) -> dict[str, Any]:
    """The metadata that a file's sender gives with it. ShardRefused where it is malformed."""
    try:
        said = json.loads(shard.meta or "{}")
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise ShardRefused(f"the metadata of {shard.file} are not JSON")
    try:
        position_in({**said, "step": shard.step})
    except (ValueError, TypeError, OverflowError):
        raise ShardRefused(f"{shard.file} has no valid position of the stream: {shard.meta[:60]}") from None
    return said


def tensor_names(path: Path, shard: Shard, meta: dict[str, Any], wanted: Expected) -> frozenset[str]:
    """The names of a file's tensors. ShardRefused where the file is not the expected one."""
    why = wanted.complaint(shard.files, meta)
    if not why:
        why, names = look_into(path, wanted.tensors)
        if not why:
            return names
    raise ShardRefused(f"{shard.file} of step {shard.step}: {why}")
