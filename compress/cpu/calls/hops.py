"""Calls of the compiled loops (see ``dispatch``) for codecs made for several hops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...primitives import scales
from ...primitives.key import Key
from ..dispatch import _factor, _key, _loops, packed_bytes, room
from .levels import Mirror

BLOCK = 256
_CELLS = 4096


@dataclass(frozen=True)
class Table:
    """Rising levels as ``loops.levels.between`` takes them, a row for each width."""

    lows: np.ndarray
    gaps: np.ndarray
    nexts: np.ndarray
    cells: np.ndarray
    origin: np.float32
    scale: np.float32
    mirrors: tuple[np.ndarray, ...]


def table(rows: list[torch.Tensor]) -> Table:
    """The table of rows of fp32 levels, which all have the same first and last level."""
    low, high = float(rows[0][0]), float(rows[0][-1])
    count = max(len(row) for row in rows)
    lows, gaps = np.zeros((len(rows), count), np.float32), np.ones((len(rows), count), np.float32)
    nexts, cells = np.full((len(rows), count), np.inf, np.float32), np.empty((len(rows), _CELLS), np.uint8)
    starts = low + (high - low) / _CELLS * (np.arange(_CELLS) - 1e-2)  # a little lower, as the index is rounded
    for to, row in enumerate(rows):
        levels = row.numpy()
        last = len(levels) - 2
        lows[to, : len(levels)], gaps[to, : last + 1] = levels, levels[1:] - levels[:-1]
        nexts[to, :last] = levels[1:-1]
        cells[to] = np.clip(np.searchsorted(levels, starts, side="right") - 1, 0, last)
    mirrors = [_mirror(row.numpy()) for row in rows]
    found = [mirror.numbers() if len(mirror.edges) else (0.0, [np.inf] * 7, [1.0] * 8, -1) for mirror in mirrors]
    columns = zip(*found, strict=True)
    arrays = tuple(np.array(column, kind) for column, kind in zip(columns, [np.float32] * 3 + [np.int64], strict=True))
    return Table(lows, gaps, nexts, cells, np.float32(low), np.float32(_CELLS / (high - low)), arrays)


def _mirror(levels: np.ndarray) -> Mirror:
    """The mirror of levels that begin at 0 or are symmetric about it."""
    return Mirror.of(levels, 0) if levels[0] == 0 else Mirror.about(levels, 0.0)


@dataclass(frozen=True)
class Widths:
    """The blocks' widths, and the position of each width's codes in the body."""

    choice: np.ndarray
    widths: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    size: int

    @classmethod
    def of(cls, choice: torch.Tensor, widths: tuple[int, ...]) -> Widths:
        """choice: uint8, the index in ``widths`` of each block."""
        counts = np.bincount(choice.numpy(), minlength=len(widths)).astype(np.int64) * BLOCK
        sizes = [packed_bytes(int(count), width) for count, width in zip(counts, widths, strict=True)]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return cls(choice.numpy(), np.array(widths, np.int64), starts[:-1], counts, int(starts[-1]))


@dataclass(frozen=True)
class Frame:
    """How blocks are prepared: multiplied by two powers of two, and rotated with ``signs`` if these are given."""

    first: float
    second: float
    signs: np.ndarray | None

    def numbers(self) -> tuple[Any, ...]:
        signs = np.empty(0, np.int64) if self.signs is None else self.signs
        return np.float32(self.first), np.float32(self.second), self.signs is not None, signs


def energies(x: torch.Tensor, frame: Frame) -> torch.Tensor:
    """fp64: the sum of the squares of each prepared block of a flat fp32 vector."""
    out = torch.empty(-(-x.numel() // BLOCK), dtype=torch.float64)
    _loops("turned.hops").energies(x.numpy(), *frame.numbers(), out.numpy())
    return out


def quantize(
    x: torch.Tensor, frame: Frame, widths: Widths, levels: Table, key: Key, members: int = 0, rank: int = 0,
    shared: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """(bfloat16 means, int16 scales, uint8 finer scales, packed codes) of a flat fp32 vector; rotated blocks have only
    scales and codes. members, rank, shared: for correlated rounding: the number of workers, this one's rank, and their
    common seed."""
    blocks, turned = len(widths.choice), frame.signs is not None
    means = torch.empty(0 if turned else blocks, dtype=torch.bfloat16)
    codes, fine = torch.empty(blocks, dtype=torch.int16), torch.empty(0 if turned else 16 * blocks, dtype=torch.uint8)
    packed = room(widths.size, torch.uint8)
    places = widths.choice, widths.widths, widths.starts, widths.counts
    tables = levels.lows, levels.gaps, levels.nexts, levels.cells, levels.origin, levels.scale, *levels.mirrors
    randomness = scales.most(), *_key(key), np.uint64(shared), rank, members
    out = means.view(torch.uint16).numpy(), codes.numpy(), fine.numpy(), packed.numpy()
    _loops("turned.hops").quantize(x.numpy(), *frame.numbers(), *places, *tables, *randomness, *out)
    return means, codes, fine, packed


def dequantize(
    out: torch.Tensor, packed: Any, widths: Widths, levels: np.ndarray, units: torch.Tensor, means: torch.Tensor | None,
    frame: Frame | None, weight: float | None,
) -> None:  # fmt: skip
    """Blocks, decoded into flat ``out`` or added to it with a weight. frame: rotate them back and scale them;
    None: not."""
    places = widths.choice, widths.widths, widths.starts, widths.counts
    first, second, _, signs = (frame or Frame(1.0, 1.0, None)).numbers()
    numbers = levels, units.numpy(), np.empty(0, np.float32) if means is None else means.numpy()
    scaling = frame is not None, signs, first, second, _factor(weight), weight is not None
    _loops("turned.hops").dequantize(np.frombuffer(packed, np.uint8), *places, *numbers, *scaling, out.numpy())
