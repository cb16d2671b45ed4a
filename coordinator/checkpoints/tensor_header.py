"""Checks the header of a safetensors file against the tensors that the file has to hold: names, dtypes and sizes,
without torch.

A file is 8 bytes of header length (little endian), a JSON header with each tensor's dtype, shape and byte range, then
the bytes, without a gap. See https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...proto.words.moments import factored

LONGEST_HEADER = 16 << 20
BYTES = {"F32": 4, "BF16": 2}
_NONSENSE = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)
_DAMAGED = "has a damaged header"
OUTER = "optimizer.outer."
"""Prefix of the outer optimiser's momentum, which belongs to the reference."""
_KIND = re.compile(r"optimizer\.[^.]+\.")


@dataclass(frozen=True)
class Tensors:
    """What tensors a file has to hold. kinds: prefix of the tensors' names -> dtype ("": names without a prefix). Of
    each kind, ``least`` to ``most`` elements in all.

    ``own``: how many other fp32 kinds there may be under ``optimizer.NAME.``, where only the members know the
    optimiser. ``factored``: all kinds but the reference's have the shapes of proto/words/moments.py.
    """

    least: int
    most: int
    kinds: Mapping[str, str]
    own: int = 0
    factored: bool = False

    @property
    def most_bytes(self) -> int:
        """The most bytes of all tensors together."""
        return self.most * (sum(BYTES[dtype] for dtype in self.kinds.values()) + BYTES["F32"] * self.own)


def look_into(path: Path, wanted: Tensors) -> tuple[str, frozenset[str]]:
    """(why a whole file is not as expected, a predicate such as "has a damaged header", or ""; the names of its
    tensors).

    OSError: it cannot be read.
    """
    entries, size, why = _entries(path)
    if why:
        return why, frozenset()
    try:
        return _wrong_entries(entries, size, wanted), frozenset(entries)
    except _NONSENSE:
        return _DAMAGED, frozenset()


def makes_no_sense(path: Path) -> str:
    """Why a whole file is no valid file of tensors, whichever tensors it has: a predicate, or "" where it is valid.

    OSError: it cannot be read.
    """
    entries, size, why = _entries(path)
    if why:
        return why
    try:
        return _wrong_ranges({name: (entry["dtype"], entry) for name, entry in entries.items()}, size)
    except _NONSENSE:
        return _DAMAGED


def _entries(path: Path) -> tuple[dict[str, Any], int, str]:
    """(a file's header, the number of bytes after it, what is wrong with it as a predicate or "")."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(LONGEST_HEADER, size - 8):
            return {}, 0, "is no safetensors file"
        header = file.read(length)
    try:
        entries = json.loads(header)
    except _NONSENSE:
        return {}, 0, _DAMAGED
    if not isinstance(entries, dict):
        return {}, 0, "has a header that is no table"
    entries.pop("__metadata__", None)
    return entries, size - 8 - length, ""


def _wrong_ranges(entries: Mapping[str, tuple[str, Mapping[str, Any]]], size: int) -> str:
    """Why tensors (name -> (required dtype, header entry)) do not fill ``size`` bytes without a gap or overlap: a
    predicate, or ""."""
    ranges = []
    for name, (dtype, entry) in entries.items():
        begin, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        if not all(type(one) is int and 0 <= one < 2**48 for one in (begin, end, *shape)):
            return f"has impossible numbers at {name[:80]!r}"
        if entry["dtype"] != dtype or dtype not in BYTES:
            return f"has {name[:80]!r} as {str(entry['dtype'])[:20]}, not {dtype if dtype in BYTES else 'F32 or BF16'}"
        if end - begin != math.prod(shape) * BYTES[dtype]:
            return f"has {end - begin} bytes of {name[:80]!r}, whose shape takes another number"
        ranges.append((begin, end))
    at = 0
    for begin, end in sorted(ranges):
        if begin != at:
            return "has tensors that overlap or leave a gap"
        at = end
    return "" if at == size else f"has {size} bytes of tensors, where its header says {at}"


def _wrong_entries(entries: Mapping[str, Any], size: int, wanted: Tensors) -> str:
    more = {found[0] for name in entries if wanted.own and (found := _KIND.match(name))} - set(wanted.kinds)
    if len(more) > wanted.own:
        return f"has {len(more)} kinds of moments"
    kinds = {**wanted.kinds, **dict.fromkeys(more, "F32")}
    of = {name: max((one for one in kinds if name.startswith(one)), key=len) for name in entries}
    if why := _wrong_ranges({name: (kinds[of[name]], entry) for name, entry in entries.items()}, size):
        return why
    shapes: dict[str, dict[str, tuple[int, ...]]] = {prefix: {} for prefix in kinds}
    for name, entry in entries.items():
        shapes[of[name]][name[len(of[name]) :]] = tuple(entry["shape"])
    elements = sum(math.prod(shape) for shape in shapes[""].values())
    if not wanted.least <= elements <= wanted.most:
        some = f"{wanted.most}" if wanted.least == wanted.most else f"{wanted.least} to {wanted.most}"
        return f"has {elements} weights, where the plan's stage has {some}"
    short = {name: factored(shape) for name, shape in shapes[""].items()} if wanted.factored else shapes[""]
    for prefix, there in shapes.items():
        if there != (shapes[""] if prefix in ("", OUTER) else short):
            return f"has other tensors under {prefix!r} than weights"
    return ""
