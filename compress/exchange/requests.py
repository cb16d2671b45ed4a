"""The requests of an exchange's program (reduce, gather, scatter) and its context, as plain values."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from ..primitives.key import mix


@dataclass(frozen=True)
class Reduce:
    """Answer: the sum or the elementwise maximum of the workers' tensors (same shape on all), the same on all.

    bits: bits of one element on the wire, if fewer than its dtype has (packed integers).
    """

    tensor: torch.Tensor
    op: Literal["sum", "max"] = "sum"
    bits: int | None = None

    def wire_bytes(self) -> int:
        bits = self.tensor.element_size() * 8 if self.bits is None else self.bits
        return -(-self.tensor.numel() * bits // 8)


@dataclass(frozen=True)
class Gather:
    """Answer: the (blob, weight) of every worker in the order of ranks, including this one's."""

    blob: bytes
    weight: float = 1.0


@dataclass(frozen=True)
class Scatter:
    """blobs: one for each rank. Answer: the (blob, weight) that each rank had for this one, in the order of ranks."""

    blobs: tuple[bytes, ...]
    weight: float = 1.0


Request = Reduce | Gather | Scatter
Program = Generator[Request, Any, torch.Tensor]


@dataclass
class Context:
    """The worker that runs a program. seed: the run's; tensor: the tensor's number; rank, size: this worker's rank and
    the number of workers in this exchange; weight: the worker's weight; memory: values that a program keeps for its
    next call (a warm start), which may be lost. own: set by the program to this worker's term of the result, as the
    others decoded it (flat, weighted): input - own is its error. part: this worker's fraction of all workers' weight;
    None: 1 / size."""

    seed: int = 0
    tensor: int = 0
    step: int = 0
    rank: int = 0
    size: int = 1
    weight: float = 1.0
    memory: dict[str, torch.Tensor] = field(default_factory=dict)
    own: torch.Tensor | None = None
    part: float | None = None

    @property
    def tensor_seed(self) -> int:
        return mix(self.seed, self.tensor)
