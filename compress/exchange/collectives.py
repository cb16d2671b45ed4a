"""Runs phase programs over a torch.distributed group: all programs step together, their requests in one fixed order.

Reductions of one phase are coalesced into one collective per kind, gathered blobs into one message per rank. Without a
group (one process) each request is its own answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from .requests import Gather, Program, Reduce, Request, Scatter

Group = Any


def drive(programs: Sequence[Program], group: Group | None) -> list[torch.Tensor]:
    """The programs' results. All ranks of the group must call this with programs of the same tensors in one order."""
    results: list[torch.Tensor | None] = [None] * len(programs)
    answers: dict[int, Any] = {}
    live = list(range(len(programs)))
    while live:
        requests: dict[int, Request] = {}
        for index in live:
            try:
                requests[index] = programs[index].send(answers.get(index))
            except StopIteration as end:
                results[index] = end.value
        live = list(requests)
        answers = answer(requests, group) if live else {}
    return [r for r in results if r is not None]


def answer(requests: dict[int, Request], group: Group | None) -> dict[int, Any]:
    """The answers to one phase's requests, by the same keys."""
    out: dict[int, Any] = {}
    for op in ("sum", "max"):
        chosen = {i: r for i, r in requests.items() if isinstance(r, Reduce) and r.op == op}
        for dtype in sorted({str(r.tensor.dtype) for r in chosen.values()}):
            same = {i: r.tensor for i, r in chosen.items() if str(r.tensor.dtype) == dtype}
            out.update(_reduce(same, op, group))
    gathers = {i: r for i, r in requests.items() if isinstance(r, Gather)}
    if gathers:
        everyone = exchange([b for r in gathers.values() for b in (r.blob, _number(r.weight))], group)
        for place, index in enumerate(gathers):
            out[index] = [(blobs[2 * place], _weight(blobs[2 * place + 1])) for blobs in everyone]
    for index, request in requests.items():
        if isinstance(request, Scatter):
            # Each rank gets all pieces: gloo has no all-to-all, and the pieces are small.
            everyone = exchange([*request.blobs, _number(request.weight)], group)
            rank = 0 if group is None else dist.get_rank(group)
            out[index] = [(blobs[rank], _weight(blobs[-1])) for blobs in everyone]
    return out


def exchange(blobs: Sequence[bytes], group: Group | None) -> list[list[bytes]]:
    """Every rank's blobs (the same number on each, any sizes), in the order of ranks."""
    if group is None:
        return [list(blobs)]
    size, device = dist.get_world_size(group), _device(group)
    lengths = torch.tensor([len(b) for b in blobs], dtype=torch.int64, device=device)
    all_lengths = [torch.empty_like(lengths) for _ in range(size)]
    dist.all_gather(all_lengths, lengths, group=group)
    longest = max(int(row.sum()) for row in all_lengths)
    mine = torch.zeros(longest, dtype=torch.uint8)
    joined = b"".join(blobs)
    mine[: len(joined)] = torch.frombuffer(bytearray(joined), dtype=torch.uint8) if joined else mine[:0]
    mine = mine.to(device)
    everyone = [torch.empty_like(mine) for _ in range(size)]
    if longest:
        dist.all_gather(everyone, mine, group=group)
    out = []
    for row, data in zip(all_lengths, everyone, strict=True):
        raw, at, parts = data.cpu().numpy().tobytes(), 0, []
        for length in row.tolist():
            parts.append(raw[at : at + length])
            at += length
        out.append(parts)
    return out


def agree(fine: bool, group: Group | None) -> bool:
    """Whether ``fine`` is true on all ranks."""
    if group is None:
        return fine
    flag = torch.tensor([0.0 if fine else 1.0], device=_device(group))
    dist.all_reduce(flag, dist.ReduceOp.MAX, group=group)
    return float(flag) == 0.0


def _reduce(tensors: dict[int, torch.Tensor], op: str, group: Group | None) -> dict[int, torch.Tensor]:
    if group is None:
        return {i: t.clone() for i, t in tensors.items()}
    flat = torch.cat([t.reshape(-1) for t in tensors.values()])
    dist.all_reduce(flat, dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX, group=group)
    pieces = flat.split([t.numel() for t in tensors.values()])  # type: ignore[no-untyped-call]
    return {i: piece.view(t.shape) for (i, t), piece in zip(tensors.items(), pieces, strict=True)}


def _device(group: Group) -> torch.device:
    return (
        torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(group) == "nccl" else torch.device("cpu")
    )


def _number(weight: float) -> bytes:
    return float(weight).hex().encode()


def _weight(data: bytes) -> float:
    return float.fromhex(data.decode())
