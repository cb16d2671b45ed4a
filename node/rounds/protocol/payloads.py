"""The payloads of rounds: concatenated blobs, with their sizes and the digest of all bytes.

A part of the vector is encoded segment by segment; a contribution or a result has one blob for each segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import xxhash

from .... import compress
from ...wire.api import Blob
from .messages import Contribution, Part

SEGMENT = 1 << 21
"""Elements that are encoded at once. It limits the memory of an encoding, and lets operations find a segment in the
processor's cache; with smaller segments, a codec's fixed cost per segment would dominate."""

Payload = Sequence[bytes | memoryview] | Sequence[bytes] | memoryview
Place = Callable[[Iterable[Blob], int], Sequence[bytes] | memoryview]
"""``place(blobs, count)`` writes encoded blobs, as they are made, into memory from which they are sent
(`Wire.place`)."""


class Refused(Exception):
    """A contribution or result of ``member`` must not count; ``why`` is the reason."""

    def __init__(self, member: str, why: str) -> None:
        super().__init__(f"{member}: {why}")
        self.member, self.why = member, why


def absurd_norm(member: str, norm: float, limit: float) -> Refused:
    """The refusal of a contribution whose norm is absurd."""
    return Refused(member, f"an absurd norm: {norm:.3g}, where the group's median allows {limit:.3g}")


def segments(part: Part) -> list[slice]:
    """The segments of a part, as slices of the section."""
    return [segment_at(part, start) for start in range(part.start, part.stop, SEGMENT)]


def segment_at(part: Part, start: int) -> slice:
    """The segment of a part that begins at element ``start``."""
    return slice(start, min(start + SEGMENT, part.stop))


def joined(blobs: Iterable[Blob], count: int = 0) -> tuple[bytes, ...]:
    """The blobs, copied into this process's own memory."""
    return tuple(b"".join(pieces) for pieces in blobs)


def contribution_of(blobs: Iterable[Blob | bytes], count: int = 0, place: Place = joined) -> Contribution:
    """A contribution from blobs, with their sizes and the digest of all bytes. ``place`` stores them; ``count``: how
    many there are."""
    digest, sizes = xxhash.xxh3_64(), list[int]()

    def told() -> Iterator[Blob]:
        for blob in blobs:
            pieces = (blob,) if isinstance(blob, bytes) else blob
            for piece in pieces:
                digest.update(piece)
            sizes.append(sum(map(len, pieces)))
            yield pieces

    payload = place(told(), count)
    return Contribution(payload, tuple(sizes), digest.intdigest())


def received(payload: memoryview, sizes: Sequence[int]) -> Contribution:
    """A contribution (or a result's payload) as it came from the wire."""
    return Contribution(payload, tuple(sizes), xxhash.xxh3_64_intdigest(payload) if sizes else 0)


def pieces_of(payload: Payload, sizes: Sequence[int]) -> Iterator[bytes | memoryview]:
    """The blobs of a payload, which is either still in pieces or one buffer cut by ``sizes``."""
    if not isinstance(payload, memoryview):
        yield from payload
        return
    if sum(sizes) != payload.nbytes:
        raise compress.CodecError(f"{payload.nbytes} bytes where the sizes add up to {sum(sizes)}")
    start = 0
    for size in sizes:
        yield payload[start : start + size]
        start += size


def blobs_of(payload: Payload, sizes: Sequence[int], part: Part, member: str) -> dict[int, bytes | memoryview]:
    """A part's encoded segments by their first element. Refused: their number is not that of the part's segments."""
    wanted = segments(part)
    if len(sizes) != len(wanted):
        raise Refused(member, f"{len(sizes)} pieces where part {part.index} has {len(wanted)}")
    return {here.start: blob for here, blob in zip(wanted, pieces_of(payload, sizes), strict=True)}
