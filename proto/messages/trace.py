"""A node's trace of some steps as bytes: compressed JSON of bounded size, without code.

The writer is the node, the reader (the coordinator) trusts nothing in it.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import FarflungError

MOST_BYTES = 2 << 20
"""The most bytes of a node's trace, compressed."""
MOST_PLAIN = 24 << 20
"""The most bytes of a node's trace, decompressed."""
MOST_SPANS = 60_000
MOST_STEPS = 100
_MOST_ROWS = 40
_MOST_LETTERS = 160


class BadTrace(FarflungError):
    """Bytes that are no trace, or too much of one."""


@dataclass(frozen=True)
class Span:
    """Work that took ``seconds`` from ``start`` on (the node's monotonic clock), drawn in the row ``row`` of its
    node."""

    row: str
    name: str
    start: float
    seconds: float
    detail: str = ""


@dataclass(frozen=True)
class NodeTrace:
    """One node's trace. ``steps``: the steps that it has completely. ``note``: what is left out; empty: nothing."""

    steps: tuple[int, ...]
    spans: tuple[Span, ...]
    note: str = ""


def pack(steps: Sequence[int], spans: Iterable[Span], note: str = "") -> bytes:
    """The bytes of a trace. Start and end are rounded, not the length, so that nested spans stay nested."""
    rows = []
    for one in spans:
        start = round(one.start, 7)
        seconds = round(round(one.start + one.seconds, 7) - start, 7)
        rows.append([one.row, one.name[:_MOST_LETTERS], start, seconds, one.detail[:_MOST_LETTERS]])
    return zlib.compress(json.dumps([1, list(steps), rows, note], separators=(",", ":")).encode(), 6)


def unpack(data: bytes) -> NodeTrace:
    """Decode a trace from an untrusted node. BadTrace says what is wrong."""
    if len(data) > MOST_BYTES:
        raise BadTrace(f"{len(data)} bytes, where {MOST_BYTES} are allowed")
    engine = zlib.decompressobj()
    try:
        plain = engine.decompress(data, MOST_PLAIN)
        if not engine.eof:
            raise BadTrace(f"it is cut off, or has more than {MOST_PLAIN} bytes")
        found = json.loads(plain)
    except (zlib.error, ValueError, RecursionError) as problem:
        raise BadTrace(f"not compressed JSON: {type(problem).__name__}") from None
    if not (isinstance(found, list) and len(found) == 4 and found[0] == 1):
        raise BadTrace("not a trace of version 1")
    _, steps, spans, note = found
    if not (isinstance(steps, list) and len(steps) <= MOST_STEPS and all(type(n) is int and n >= 0 for n in steps)):
        raise BadTrace("steps that are none")
    if not (isinstance(spans, list) and len(spans) <= MOST_SPANS):
        raise BadTrace(f"more than {MOST_SPANS} spans, or none at all")
    read = tuple(_span(one) for one in spans)
    if len({one.row for one in read}) > _MOST_ROWS:
        raise BadTrace(f"more than {_MOST_ROWS} rows")
    return NodeTrace(tuple(steps), read, _text(note))


def _span(found: Any) -> Span:
    if not (isinstance(found, list) and len(found) == 5):
        raise BadTrace("a span that is none")
    row, name, start, seconds, detail = found
    for number in (start, seconds):
        if type(number) not in (int, float) or not math.isfinite(number) or not 0 <= number < 1e12:
            raise BadTrace("a span at no time")
    return Span(_text(row), _text(name), float(start), float(seconds), _text(detail))


def _text(found: Any) -> str:
    if not isinstance(found, str) or len(found) > _MOST_LETTERS:
        raise BadTrace("a name that is none")
    return "".join(letter if letter.isprintable() else " " for letter in found)
