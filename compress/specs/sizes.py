"""The length of a codec's blob from its parameters alone; plans use it before anything is encoded.

Each function here is, or returns, the ``bits`` of a declaration: (parameters, elements) -> bits of the body. Most are
exact; for codecs whose length depends on the values, it is the length for normally distributed ones. No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from .traits import Value

Values = Mapping[str, Value]
Bits = Callable[[Values, int], float]
"""(parameters by name, elements) -> bits of a body."""

HEADER_BITS, SEED_BITS = 8 * 14, 8 * 11
"""Bits of a vector's header (see wire.py): magic, checksum, type and shape; then of a 64-bit seed and a step. The real
size may differ by a byte or two."""
_MOST_LOW = 24


def number(values: Values, key: str) -> float:
    """A parameter that is a number."""
    return float(values[key])


def each(bits: float) -> Bits:
    """``bits`` bits for every element."""
    return lambda values, count: bits * count


def grouped(bits: float | str, size: int | str, scale: float | str, once: float = 0.0, whole: bool = False) -> Bits:
    """``bits`` for every element and ``scale`` for every group of ``size`` (0: one group); ``once`` for the vector.

    A string names the parameter that has the number. whole: the last group is padded.
    """

    def total(values: Values, count: int) -> float:
        group = int(_value(values, size)) or count
        groups = -(-count // group)
        return _value(values, bits) * (groups * group if whole else count) + groups * _value(values, scale) + once

    return total


def _value(values: Values, what: float | str) -> float:
    return number(values, what) if isinstance(what, str) else what


def places(kept: float, size: float) -> float:
    """Bits of the positions of ``kept`` of ``size`` elements (sparsifiers/masks.py), as if drawn at random."""
    if kept >= size:
        return 8.0
    part = kept / size
    coded: list[float] = []
    for low in range(_MOST_LOW + 1):
        skipped = float((1 - part) ** (2**low))  # a gap goes on for 2^low elements more with this chance
        coded.append(1 + low + skipped / (1 - skipped) if skipped < 1 else math.inf)
    return min(kept * min(coded) + 32, size + 8)


def rotated(bits: float | str, numbers: int = 1) -> Bits:
    """Codes of rotated blocks and ``numbers`` fp32 numbers a block (primitives/rotation.py)."""

    def total(values: Values, count: int) -> float:
        block = int(number(values, "block")) or 1 << max(0, count.bit_length() - 1)
        rest = count % block
        blocks = count // block + rest.bit_count() if rest > 256 else -(-count // block)
        return _value(values, bits) * count + 32 * numbers * blocks

    return total


def turboquant(values: Values, count: int) -> float:
    """EDEN, and with ``kind = "prod"`` the residual's length a block beside it; its sign is one of the bits."""
    return rotated("bits", 2 if values["kind"] == "prod" and number(values, "bits") > 1 else 1)(values, count)


def quicfl(values: Values, count: int) -> float:
    """Codes of all coordinates, and one in 512 exactly beside them."""
    exact = count / 512
    return rotated("bits")(values, count) + 32 * exact + places(exact, count)


def thc(values: Values, count: int) -> float:
    """Codes, and the range of all values (two fp32)."""
    return number(values, "bits") * count + 64


def adaptive(values: Values, count: int) -> float:
    """Codes, and the table of levels."""
    return number(values, "bits") * count + 8 + 32 * min(1 << int(number(values, "bits")), count + 1)


def sign(values: Values, count: int) -> float:
    """A bit for each element, and one fp32 scale or two."""
    return count + (64 if values["scale"] == "two" else 32)


def budget(values: Values, count: int) -> float:
    """A budget of bits per element that includes scales."""
    return number(values, "bits") * count + 72


def hops(values: Values, count: int) -> float:
    """A budget of bits over whole blocks of 256, most of which is used."""
    return -(-count // 256) * 256 * number(values, "bits")


def aqsgd(values: Values, count: int) -> float:
    """The encoding of a change, as in most visits; the first visit of a sample takes ``first_bits`` instead."""
    return grouped("bits", "group", 8)(values, count)


def cocktail(values: Values, count: int) -> float:
    """Positions and values of the elements that are kept of those that a step offers."""
    offered = number(values, "random") * count
    kept = min(offered, max(1.0, number(values, "top") * offered))
    scale = 24 if values["values"] == "log" and number(values, "bits") > 1 else 16
    where = 8 + offered if values["mask"] == "bitmap" and kept < offered else places(kept, offered)
    return where + kept * number(values, "bits") + scale * math.ceil(kept / 128)


def topk(values: Values, count: int) -> float:
    """Positions and plain values."""
    kept = min(count, max(1, int(number(values, "ratio") * count + 0.5)))
    return places(kept, count) + kept * (16 if values["values"] == "bf16" else 32)


def randomk(values: Values, count: int) -> float:
    """Plain values; all workers know the positions."""
    return 32 * number(values, "ratio") * count


def chunked_topk(values: Values, count: int) -> float:
    """A place of 12 bits and a few bits for each kept value, and two scales a chunk."""
    whole, rest = divmod(count, 4096)
    last = min(rest, max(1, int(number(values, "k")) * rest // 4096)) if rest else 0
    kept = whole * int(number(values, "k")) + last
    return kept * (12 + number(values, "bits")) + 32 * (whole + bool(rest))


def demo(values: Values, count: int) -> float:
    """A place of 12 bits and a sign for each coefficient, and a scale a tile."""
    return -(-count // 4096) * (13 * number(values, "k") + 16)


def powersgd(values: Values, count: int) -> float:
    """The two factors of a vector's square matrix, or its values where these are fewer."""
    rows = math.isqrt(max(0, count - 1)) + 1
    columns = -(-count // rows)
    factors = number(values, "factors") * (rows + columns) * min(int(number(values, "rank")), rows, columns)
    return factors if factors * number(values, "rate") < 32.0 * count else 32.0 * count


def tile(values: Values, count: int) -> float:
    """Codes of whole tiles, a scale each, and whether it was rotated."""
    return grouped("bits", "tile", 17, whole=True)(values, count)
