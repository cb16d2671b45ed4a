"""What a program of an exchange asks for (sums, gathers, scatters), and who asks: plain values."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from ..primitives.key import mix


@dataclass(frozen=True)
class Reduce:
    """Answer: the sum or the elementwise maximum of the workers' tensors (same shape on all), the same on all.

    bits: what one element costs on the wire, where that is less than its dtype's (packed integers).
    """

    tensor: torch.Tensor
    op: Literal["sum", "max"] = "sum"
    bits: int | None = None

    def wire_bytes(self) -> int:
        bits = self.tensor.element_size() * 8 if self.bits is None else self.bits
        return -(-self.tensor.numel() * bits // 8)


@dataclass(frozen=True)
class Gather:
    """Answer: every worker's (blob, weight) in the order of ranks, one's own included."""

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
    """Who asks. seed: of the run; tensor: a number of the tensor; rank, size: this worker's place in this exchange;
    weight: its share; memory: what a program keeps for its next time (a warm start), safe to lose. own: set by the
    program to this worker's part of the result, as the others decoded it (flat, weighted): input - own is its error.
    part: this worker's of the weight of all who take part; None: as much as any other's."""

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
