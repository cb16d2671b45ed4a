"""Sums in one order: the same bits on every device, with and without the compiled loops.

The terms are computed in fp64 from fp32 values. They are summed pairwise, by adding halves elementwise: first within
chunks of 1024 neighbours, then over the chunks. No scaling is needed: squares of fp32 numbers are exact in fp64 and far
from the ends of its range.
"""

from __future__ import annotations

import torch

from ..cpu import dispatch as fast

CHUNK = 1024
MAGNITUDES, SQUARES, BELOW, ABOVE, VALUES = range(5)
"""The terms of a sum: |x|, x^2, max(-x, 0), max(x, 0), x."""
_PIECE = 1 << 16


def tree(values: torch.Tensor) -> torch.Tensor:
    """The sum of each row of fp64 ``[rows, columns]``; columns are padded with zeros to a power of two."""
    columns = values.shape[1]
    width = 1 << max(0, columns - 1).bit_length()
    if width > columns:
        values = torch.nn.functional.pad(values, (0, width - columns))
    while width > 1:
        width //= 2
        values = values[:, :width] + values[:, width:]
    return values[:, 0]


def sums(x: torch.Tensor, size: int, what: int) -> torch.Tensor:
    """fp64 ``[-(-n // size)]``: the sum of each ``size`` neighbours of a flat fp32 vector (the last may be fewer)."""
    n = x.numel()
    if x.device.type == "cpu" and fast.worth(n):
        return fast.sums(x, size, what)
    width = min(CHUNK, 1 << max(0, size - 1).bit_length())
    rows, chunks = -(-n // size), -(-size // width)
    if size >= n or size % width == 0:
        parts = [_chunks(part, width, what) for part in torch.split(x, _PIECE)]
        part = torch.cat(parts) if len(parts) > 1 else parts[0]
        part = torch.nn.functional.pad(part, (0, rows * chunks - part.numel()))
    else:
        padded = torch.nn.functional.pad(x, (0, rows * size - n)).view(rows, size)
        part = _chunks(torch.nn.functional.pad(padded, (0, chunks * width - size)).view(-1), width, what)
    return tree(part.view(rows, chunks))


def norms(x: torch.Tensor, size: int) -> torch.Tensor:
    """fp32: the Euclidean norm of each ``size`` neighbours; infinite where it is beyond fp32."""
    return sums(x, size, SQUARES).sqrt().to(torch.float32)


def _chunks(x: torch.Tensor, width: int, what: int) -> torch.Tensor:
    terms = torch.nn.functional.pad(x, (0, -x.numel() % width)).double()
    if what == MAGNITUDES:
        terms = terms.abs()
    elif what == SQUARES:
        terms = terms.square()
    elif what == BELOW:
        terms = (-terms).clamp(min=0.0)
    elif what == ABOVE:
        terms = terms.clamp(min=0.0)
    return tree(terms.view(-1, width))
