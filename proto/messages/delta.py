"""Edits that turn old bytes into new ones (delta encoding): the views of a large run hardly differ. Pure.

Edits are a zlib stream of operations; each consists of a literal (varint length, bytes) and a copy (varint offset,
varint length) from the old bytes. The receiver checks a digest of the result.
"""

from __future__ import annotations

import hashlib
import zlib

DIGEST_BYTES = 8
LARGEST = 64 << 20
"""The most bytes of a result."""
KEPT = 8
"""How many of the newest views both ends keep; edits refer to one of these."""
_ANCHOR, _STRIDE = 24, 16
_MOST_MISSES = 500
"""After so many anchors that the old bytes do not contain, the rest is sent as a literal."""


def digest(data: bytes) -> bytes:
    """A digest by which the receiver checks the result."""
    return hashlib.sha256(data).digest()[:DIGEST_BYTES]


def edits(old: bytes, new: bytes) -> bytes:
    """The edits that turn ``old`` into ``new``; short if the two have long pieces in common, in any order."""
    made = bytearray()
    done = at = near = misses = 0
    while at + _ANCHOR <= len(new) and misses < _MOST_MISSES and old:
        anchor = new[at : at + _ANCHOR]
        found = old.find(anchor, near)  # mostly a little after the last one
        if found < 0:
            found = old.find(anchor, 0, near + _ANCHOR)
        if found < 0:
            misses, at = misses + 1, at + _STRIDE
            continue
        before = _common_before(old, found, new, at, done)
        length = before + _ANCHOR + _common(old, found + _ANCHOR, new, at + _ANCHOR)
        _put(made, new[done : at - before], found - before, length)
        done = at = at - before + length
        near = found - before + length
    if done < len(new):
        _put(made, new[done:], 0, 0)
    return zlib.compress(bytes(made), 6)


def apply(old: bytes, made: bytes) -> bytes:
    """The new bytes. ValueError: these are no edits of ``old``."""
    unpacker = zlib.decompressobj()
    try:
        told = unpacker.decompress(made, LARGEST)
    except zlib.error as error:
        raise ValueError(f"no edits: {error}") from None
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise ValueError("edits are cut short, or too long")
    parts: list[bytes] = []
    at = total = 0
    while at < len(told):
        size, at = _varint(told, at)
        literal = told[at : at + size]
        offset, at = _varint(told, at + size)
        length, at = _varint(told, at)
        if len(literal) != size or offset + length > len(old):
            raise ValueError("edits of other bytes")
        total += size + length
        if total > LARGEST:
            raise ValueError("edits that make too much")
        parts += [literal, old[offset : offset + length]]
    return b"".join(parts)


def _put(made: bytearray, literal: bytes, offset: int, length: int) -> None:
    _put_varint(made, len(literal))
    made += literal
    _put_varint(made, offset)
    _put_varint(made, length)


def _put_varint(made: bytearray, number: int) -> None:
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)


def _varint(told: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(told) or shift > 56:
            raise ValueError("edits are cut short")
        byte = told[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at


def _common(old: bytes, first: int, new: bytes, second: int) -> int:
    """How many bytes are equal from ``first`` in ``old`` and ``second`` in ``new`` on."""
    size, step = 0, 4096
    while step:
        while old[first + size : first + size + step] == new[second + size : second + size + step]:
            if first + size + step > len(old) or second + size + step > len(new):
                break
            size += step
        step //= 4
    return size


def _common_before(old: bytes, first: int, new: bytes, second: int, least: int) -> int:
    """How many bytes are equal just before ``first`` in ``old`` and ``second`` in ``new``, there not before
    ``least``."""
    size = 0
    while size < first and second - size > least and old[first - size - 1] == new[second - size - 1]:
        size += 1
    return size
