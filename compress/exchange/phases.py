"""A whole exchange of one tensor as a generator: it yields a request (reduce, gather), and is sent the answer.

The caller owns the network, the order, the retries and the state. Because a program only yields requests, a caller can
issue those of many tensors in the same order on all workers; torch's hooks, which start collectives from callbacks,
hang if the order differs.

``program(spec, x, context)`` returns the *weighted sum* over the workers that took part, so that partial groups and
unequal batches are exact; the caller divides by the total weight.
"""

from __future__ import annotations

import torch

from ..codec import Codec, add, add_all, gather, make
from ..errors import CodecError
from ..primitives.key import mix
from ..specs.spec import Spec
from .requests import Context, Gather, Program, Reduce, Request, Scatter

__all__ = ["Context", "Gather", "Program", "Reduce", "Request", "Scatter", "gather", "program", "publish", "split"]


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


def publish(codec: Codec, x: torch.Tensor, context: Context) -> Program:
    """Each worker sums one piece of all workers' vectors, encodes the sum again and sends it to all. The vector is
    encoded twice, and this program keeps no server error (``feedback.Feedback`` and the node's rounds do)."""
    pieces = split(x.reshape(-1), context.size)
    seeds = [mix(context.tensor_seed, piece) for piece in range(context.size)]
    blobs = tuple(
        codec.encode(piece, seed, context.step, context.rank, context.size)
        for piece, seed in zip(pieces, seeds, strict=True)
    )
    answers = yield Scatter(blobs, context.weight)
    total = add_all(answers, pieces[context.rank])
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
