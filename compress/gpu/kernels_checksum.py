"""The Triton kernel of ``checksum``."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton.language as tl

from .kernels import jit


@jit
def crc_words(
    words, out, row, columns, count: tl.int64, blocks: tl.int32, rows: tl.int32, COLUMNS: tl.constexpr
):  # fmt: skip
    """The register after each block of rows * COLUMNS int32 words; the words are padded with leading zeros so that they
    end with the last block. row, columns: see ``checksum``."""
    lane = tl.arange(0, COLUMNS)
    before = blocks.to(tl.int64) * rows * COLUMNS - count
    at = tl.program_id(0).to(tl.int64) * rows * COLUMNS - before + lane
    register = tl.zeros([COLUMNS], tl.int32)
    for _ in range(rows):
        moved = tl.load(words + at, mask=at >= 0, other=0)
        for bit in tl.static_range(32):
            moved = moved ^ (-((register >> bit) & 1) & tl.load(row + bit))
        register = moved
        at += COLUMNS
    moved = tl.zeros([COLUMNS], tl.int32)
    for bit in tl.static_range(32):
        moved = moved ^ (-((register >> bit) & 1) & tl.load(columns + bit * COLUMNS + lane))
    tl.store(out + tl.program_id(0), tl.xor_sum(moved, 0))
