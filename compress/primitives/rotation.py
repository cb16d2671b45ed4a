"""Random rotations: signs, then Walsh-Hadamard, in blocks. Additions in one fixed order, so the same bits everywhere.

The transform is not normalised (the codec's own scale includes the factor 1/sqrt(block)). A vector is cut into blocks
of ``block`` elements; the remainder is cut into powers of two down to 256, and only the last piece is padded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from ..cpu import dispatch as fast
from ..errors import CodecError
from ..gpu import dispatch as gpu
from . import philox, sums
from .key import Key

EXACT = 8192
SIGNS, RESIDUAL = 0x5349474E, 0x52455349
BEYOND = "the norm of a block is beyond fp32: use int8 or eden for such numbers, or scale them"


@dataclass(frozen=True)
class Segment:
    """``rows`` blocks of ``size`` coordinates. They hold ``length`` elements from ``start`` on, and their first code
    has the index ``code``."""

    start: int
    length: int
    rows: int
    size: int
    code: int
    row: int


@lru_cache(maxsize=256)
def layout(count: int, block: int) -> tuple[Segment, ...]:
    """The segments of a vector of ``count`` elements; block: a power of two, or 0 for the largest that fits."""
    out: list[Segment] = []
    at = code = row = 0
    size = block or 1 << max(0, count.bit_length() - 1)
    while at < count:
        left = count - at
        if left >= size:
            rows = left // size
            length = rows * size
        elif left > 256:
            size = 1 << (left.bit_length() - 1)
            continue
        else:
            rows, length, size = 1, left, 1 << (left - 1).bit_length()
        out.append(Segment(at, length, rows, size, code, row))
        at, code, row = at + length, code + rows * size, row + rows
    return tuple(out)


def coordinates(count: int, block: int) -> int:
    """How many coordinates the blocks of ``count`` elements have."""
    return sum(s.rows * s.size for s in layout(count, block))


def blocks(count: int, block: int) -> int:
    """How many blocks there are."""
    return sum(s.rows for s in layout(count, block))


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """Unnormalised Walsh-Hadamard transform of each row of fp32 ``[rows, 2^k]``, as a new tensor. The stages have
    strides 1, 2, 4 and so on, each computes (a + b, a - b); kernels must add in this order."""
    rows, size = x.shape
    if x.device.type == "cpu" and fast.worth(x.numel()) and size <= 1 << 15:
        return fast.hadamard(x)
    out = x.contiguous()
    if x.device.type == "cpu" and rows * size > 1 << 16 and size <= 1 << 15:
        # In pieces that stay in the cache.
        step = max(1, (1 << 15) // size)
        done = torch.empty_like(out)
        for first in range(0, rows, step):
            done[first : first + step] = _stages(out[first : first + step])
        return done
    return _stages(out)


def _stages(x: torch.Tensor) -> torch.Tensor:
    rows, size = x.shape
    current, other = x.clone(), torch.empty_like(x)
    half = 1
    while half < size:
        pairs, to = current.view(-1, 2, half), other.view(-1, 2, half)
        torch.add(pairs[:, 0], pairs[:, 1], out=to[:, 0])
        torch.sub(pairs[:, 0], pairs[:, 1], out=to[:, 1])
        current, other = other, current
        half *= 2
    return current.view(rows, size)


def energy(rows: torch.Tensor) -> torch.Tensor:
    """fp64 sum of squares of each row; values are below 1. Unless blocks are very long it is an exact integer sum,
    which does not depend on the order of addition, so that kernels get the same bits."""
    if rows.shape[1] > EXACT:
        return rows.double().square().sum(1)
    fixed = (rows * 8388608.0).to(torch.int32).to(torch.int64)
    return (fixed * fixed).sum(1).to(torch.float64) * 2.0**-46


def product(levels: torch.Tensor, turned: torch.Tensor) -> torch.Tensor:
    """fp64 sum of level * coordinate of each row, exact as in ``energy``; |coordinates| are below the block's size."""
    if turned.shape[1] > EXACT:
        return (levels.double() * turned.double()).sum(1)
    fixed = (turned * 131072.0).to(torch.int32).to(torch.int64)
    return ((levels * 1048576.0).to(torch.int32).to(torch.int64) * fixed).sum(1).to(torch.float64) * 2.0**-37


def segment_signs(segment: Segment, key: Key, stream: int, device: torch.device) -> torch.Tensor:
    """fp32 ±1 ``[rows, size]``."""
    return philox.signs(segment.rows * segment.size, key, stream, segment.code, device).view(segment.rows, segment.size)


def sign_words(segment: Segment, key: Key, stream: int = SIGNS) -> torch.Tensor:
    """The Philox words of a segment's signs, for the compiled loops."""
    count = -(-segment.rows * segment.size // 32)
    return philox.words(count, Key(key.seed, key.step), stream, segment.code // 32)


def forward(rows: torch.Tensor, segment: Segment, key: Key, rounds: int = 1, stream: int = SIGNS) -> torch.Tensor:
    """sqrt(size)^rounds times the rotation of each row."""
    for turn in range(rounds):
        if _by_kernels(rows):
            rows = gpu.turn(rows, key, stream + turn, segment.code)
            continue
        rows = hadamard(rows * segment_signs(segment, key, stream + turn, rows.device))
    return rows


def backward(rows: torch.Tensor, segment: Segment, key: Key, rounds: int = 1, stream: int = SIGNS) -> torch.Tensor:
    """sqrt(size)^rounds times the inverse rotation of each row."""
    for turn in reversed(range(rounds)):
        if _by_kernels(rows):
            rows = gpu.turn(rows, key, stream + turn, segment.code, inverse=True)
            continue
        rows = hadamard(rows) * segment_signs(segment, key, stream + turn, rows.device)
    return rows


def _by_kernels(rows: torch.Tensor) -> bool:
    return rows.shape[1] >= gpu.LEAST and rows.dtype == torch.float32 and gpu.available(rows.device)


def rows_of(x: torch.Tensor, segment: Segment) -> torch.Tensor:
    """A segment's elements as ``[rows, size]``, padded with zeros; without padding a view of ``x``."""
    part = x[segment.start : segment.start + segment.length]
    if segment.length == segment.rows * segment.size:
        return part.view(segment.rows, segment.size)
    return torch.nn.functional.pad(part, (0, segment.rows * segment.size - segment.length)).view(
        segment.rows, segment.size
    )


def put_rows(out: torch.Tensor, segment: Segment, rows: torch.Tensor) -> None:
    """The inverse of ``rows_of``."""
    out[segment.start : segment.start + segment.length] = rows.reshape(-1)[: segment.length]


def lengths(x: torch.Tensor, size: int, flag: torch.Tensor | None = None) -> torch.Tensor:
    """The fp32 norm of each ``size`` neighbours of a flat vector. CodecError if one is beyond fp32's range. With a
    ``flag`` (int32 [1] on the same device) the flag is set to 1 instead, and the host does not wait for the device."""
    found = sums.norms(x, size)
    fine = torch.isfinite(found).all()
    if flag is not None:
        flag |= ~fine
    elif not bool(fine):
        raise CodecError(BEYOND)
    return found


def rescale(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows divided by a power of two so that their largest magnitude is below 1, that power's exponent): exact,
    without overflow."""
    largest = rows.abs().amax(1)
    exponent = torch.where(largest > 0, torch.frexp(largest)[1], 0)
    half = exponent // 2
    return torch.ldexp(torch.ldexp(rows, -half[:, None]), -(exponent - half)[:, None]), exponent
