"""Writes a safetensors file directly into the memory from which it is sent: one copy of each tensor.

The library's ``save`` copies all tensors, and its result would have to be copied again to shared memory: two copies of
a stage beside the stage itself. The bytes are the same.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...models.weights.safetensors_range import DTYPES
from ..sections.room import leave

Room = Callable[[int], memoryview]
"""``room(length)`` returns ``length`` writable bytes."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ALIGNED = 8
_SLICE = 1 << 24  # elements that are copied at once, so that a tensor on a device needs no second whole copy


@dataclass(frozen=True)
class Written:
    """The layout of a file: ``header`` first, then each tensor at its offset (bytes) from the file's beginning."""

    header: bytes
    offsets: dict[str, int]
    size: int


def written(tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> Written:
    """The layout of a file with these tensors, of which only shapes and dtypes are read. ``about``: its metadata."""
    ordered = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    entries: dict[str, object] = {"__metadata__": {"format": "pt"} if about is None else dict(about)}
    begins, at = {}, 0
    for name in ordered:
        tensor = tensors[name]
        begins[name], end = at, at + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    words = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    words += b" " * (-len(words) % _ALIGNED)
    header = struct.pack("<Q", len(words)) + words
    return Written(header, {name: len(header) + begin for name, begin in begins.items()}, len(header) + at)


def write(tensors: Mapping[str, Tensor], room: Room) -> memoryview:
    """A safetensors file of these tensors, fp32, fp16 or bf16 on any device."""
    plan = written(tensors)
    place = room(plan.size)
    place[: len(plan.header)] = plan.header
    whole = torch.frombuffer(place, dtype=torch.uint8)
    for name, at in plan.offsets.items():
        flat = tensors[name].detach().reshape(-1)
        for begin in range(0, flat.numel(), _SLICE):
            part = flat[begin : begin + _SLICE].view(torch.uint8)
            start = at + begin * flat.element_size()
            whole[start : start + part.numel()].copy_(part)
        leave(flat)
    return place
