"""A whole exchange of one tensor as a program: it yields what it wants reduced or gathered, and is sent the answer.

The caller owns the network, the order, the retries and the state. Because a program only yields, a scheduler can issue
the requests of many tensors in one order on all workers; torch's hooks, which start collectives from callbacks, hang
where that order differs.

``program(spec, x, context)`` returns the *weighted sum* over the workers that took part: partial groups and unequal
batches stay exact, and the caller divides by the weight of the view.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from ..codec import Codec, add, make
from ..errors import CodecError
from ..primitives.philox import mix
from ..spec import Spec


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


def program(spec: str | Spec, x: torch.Tensor, context: Context, pattern: str = "auto") -> Program:
    """The exchange of one tensor under a spec. pattern: auto (the codec's own), all_to_all, publishers.

    Returns the weighted sum, fp32, in x's shape.
    """
    codec = make(spec)
    if pattern == "publishers" and codec.traits.aggregation != "sum":
        return publish(codec, x, context)
    if pattern == "all_to_all" and codec.traits.aggregation != "sum":
        return gather(codec, x, context)
    if pattern not in ("auto", "publishers", "all_to_all", "two_level"):
        raise CodecError(f"there is no exchange pattern {pattern!r} here")
    return codec.rounds(x, context)


def gather(codec: Codec, x: torch.Tensor, context: Context) -> Program:
    """Everyone decodes everyone's blob, and sums in the order of ranks."""
    blob = codec.encode(x, context.tensor_seed, context.step, context.rank)
    answers = yield Gather(blob, context.weight)
    context.own = _sum([(blob, context.weight)], x).view(-1)
    return _sum(answers, x)


def publish(codec: Codec, x: torch.Tensor, context: Context) -> Program:
    """Each worker sums one piece of everyone's, encodes the sum again and gives it to all: two squeezes, no server
    error kept here (``feedback.Feedback`` and the node's rounds keep theirs)."""
    pieces = split(x.reshape(-1), context.size)
    seeds = [mix(context.tensor_seed, piece) for piece in range(context.size)]
    blobs = tuple(
        codec.encode(piece, seed, context.step, context.rank) for piece, seed in zip(pieces, seeds, strict=True)
    )
    answers = yield Scatter(blobs, context.weight)
    total = _sum(answers, pieces[context.rank])
    answers = yield Gather(codec.encode(total, seeds[context.rank], context.step, context.size + context.rank))
    results = []
    for (blob, _), piece in zip(answers, pieces, strict=True):
        out = torch.zeros(piece.numel(), device=x.device)
        add(blob, out)
        results.append(out)
    return torch.cat(results).view(x.shape)


def split(flat: torch.Tensor, parts: int, multiple: int = 512) -> list[torch.Tensor]:
    """``parts`` contiguous pieces, all but the last a multiple of ``multiple`` long; late ones may be empty."""
    each = -(-flat.numel() // parts)
    size = -(-each // multiple) * multiple
    return [flat[i * size : (i + 1) * size] for i in range(parts)]


def _sum(answers: list[tuple[bytes, float]], like: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(like.numel(), dtype=torch.float32, device=like.device)
    for blob, weight in answers:
        add(blob, out, weight)
    return out.view(like.shape)
