"""A whole exchange between workers in this process, every byte counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..codec import Codec, check_tensor, decode, make
from ..errors import CodecError
from ..primitives.key import mix
from ..specs.spec import Spec
from .phases import program
from .requests import Context, Gather, Program, Reduce, Request, Scatter


@dataclass(frozen=True)
class Result:
    """mean: the result on every worker, fp32. bytes_up, bytes_down: bytes that each worker sends and receives. phases:
    how many exchanges follow each other, each of which takes a round trip."""

    mean: torch.Tensor
    bytes_up: list[int]
    bytes_down: list[int]
    phases: int


def simulate(
    spec: str | Spec,
    tensors: Sequence[torch.Tensor],
    *,
    pattern: str = "auto",
    seed: int = 0,
    step: int = 0,
    weights: Sequence[float] | None = None,
    same_seed: bool = False,
    memories: Sequence[dict[str, torch.Tensor]] | None = None,
) -> Result:
    """Exchange one tensor of each worker under a codec.

    pattern: auto, all_to_all, publishers, or ring and butterfly (decoded, added and encoded again at each hop).
    weights: the weight of each worker, default 1. same_seed: give all workers the private seed of worker 0, to show the
    effect of this mistake.
    """
    for x in tensors:
        check_tensor(x)
    if not len(tensors) or len({tuple(t.shape) for t in tensors}) != 1:
        raise CodecError("simulate needs one tensor of each worker, all of the same shape")
    codec, count = make(spec), len(tensors)
    shares = [1.0] * count if weights is None else [float(w) for w in weights]
    if pattern in ("ring", "butterfly"):
        return _hops(codec, tensors, pattern, seed, step)
    contexts = [
        Context(seed, 0, step, rank, count, shares[rank], {} if memories is None else memories[rank])
        for rank in range(count)
    ]
    programs = [program(spec, x, context, pattern) for x, context in zip(tensors, contexts, strict=True)]
    if same_seed:
        for context in contexts:
            context.rank = 0
    one_gather = pattern in ("auto", "all_to_all") and codec.traits.aggregation == "gather"
    results, up, down, phases = run(programs, 1 if one_gather and count > 8 else count)
    for other in results[1:]:
        assert torch.equal(results[0], other), "the workers ended with different sums"
    return Result(results[0] / sum(shares), up, down, phases)


def run(programs: Sequence[Program], finish: int | None = None) -> tuple[list[torch.Tensor], list[int], list[int], int]:
    """Run all programs together. Returns (results, bytes up of each, bytes down of each, number of phases).

    finish: for programs of one phase, how many of them to continue after it, because all would compute the same.
    """
    count = len(programs)
    results: list[torch.Tensor | None] = [None] * count
    up, down, phases = [0] * count, [0] * count, 0
    answers: list[Any] = [None] * count
    while True:
        requests: list[Request] = []
        for rank, each in enumerate(programs):
            try:
                requests.append(each.send(answers[rank]))
            except StopIteration as end:
                results[rank] = end.value
        if not requests:
            break
        if len(requests) != count:
            raise CodecError("the workers' programs have different numbers of phases")
        phases += 1
        answers = answer(requests, up, down)
        if finish is not None and finish < count:
            programs, count = programs[:finish], finish
    return [r for r in results if r is not None], up, down, phases


def answer(requests: Sequence[Request], up: list[int], down: list[int]) -> list[Any]:
    """Each worker's answer to the requests of one phase; adds their bytes to ``up`` and ``down``."""
    first, count = requests[0], len(requests)
    if any(type(request) is not type(first) for request in requests):
        raise CodecError("the workers ask for different things in the same phase")
    if isinstance(first, Reduce):
        return _reduce([r for r in requests if isinstance(r, Reduce)], up, down)
    if isinstance(first, Gather):
        gathers = [r for r in requests if isinstance(r, Gather)]
        total = sum(len(r.blob) for r in gathers)
        for rank, request in enumerate(gathers):
            up[rank] += len(request.blob) * (count - 1)
            down[rank] += total - len(request.blob)
        shared = [(r.blob, r.weight) for r in gathers]
        return [list(shared) for _ in range(count)]
    scatters = [r for r in requests if isinstance(r, Scatter)]
    for rank, scatter in enumerate(scatters):
        for to, blob in enumerate(scatter.blobs):
            if to != rank:
                up[rank] += len(blob)
                down[to] += len(blob)
    return [[(r.blobs[rank], r.weight) for r in scatters] for rank in range(count)]


def _reduce(requests: list[Reduce], up: list[int], down: list[int]) -> list[Any]:
    total, dtype = requests[0].tensor.clone(), requests[0].tensor.dtype
    total = total.to(torch.float32) if dtype == torch.bfloat16 else total  # rounded once, as a publisher does
    for request in requests[1:]:
        if request.tensor.shape != total.shape or request.op != requests[0].op:
            raise CodecError("the workers reduce tensors of different shapes")
        total = total + request.tensor if request.op == "sum" else torch.maximum(total, request.tensor)
    count = len(requests)
    for rank, request in enumerate(requests):
        moved = -(-2 * (count - 1) * request.wire_bytes() // count)
        up[rank] += moved
        down[rank] += moved
    return [total.to(dtype, copy=True) for _ in range(count)]


def _hops(codec: Codec, tensors: Sequence[torch.Tensor], pattern: str, seed: int, step: int) -> Result:
    """A reduce-scatter that decodes, adds and encodes at each hop, then an all-gather of the last encodings. Bytes are
    counted as if a vector were cut into one piece per worker."""
    count, sizes, hops = len(tensors), [], 0

    def hop(x: torch.Tensor) -> torch.Tensor:
        nonlocal hops
        hops += 1
        blob = codec.encode(x, mix(seed, 0), step, hops)
        sizes.append(len(blob))
        return decode(blob).to(torch.float32)

    partial = [t.to(torch.float32) for t in tensors]
    if pattern == "ring":
        total = partial[0]
        for other in partial[1:]:
            total = hop(total) + other
    else:
        while len(partial) > 1:
            pairs = [hop(b) + a for a, b in zip(partial[::2], partial[1::2], strict=False)]
            partial = pairs + partial[len(partial) // 2 * 2 :]
        total = partial[0]
    final = hop(total) if count > 1 else hop(partial[0])
    mean_size = sum(sizes) / len(sizes)
    moved = int(2 * (count - 1) / count * mean_size)
    return Result(final / count, [moved] * count, [moved] * count, 2 * (count - 1))
