"""Encodings as rounds carry them: blobs one after the other, with their sizes and the digest of all their bytes.

A part of the vector is encoded segment by segment; a contribution or a result has a blob for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import xxhash

from .... import compress
from ...wire.api import Blob
from .messages import Contribution, Part

SEGMENT = 1 << 21
"""Elements that are encoded at once: bounds the memory of an encoding, not the size of a part. What is done to a
segment then finds it in the processor's cache; with fewer, what a codec does once for each piece counts."""

Payload = Sequence[bytes | memoryview] | Sequence[bytes] | memoryview
Place = Callable[[Iterable[Blob], int], Sequence[bytes] | memoryview]
"""Lays encoded blobs where they are sent from, as they are made; ``count`` is how many will follow."""


class Refused(Exception):
    """A member's contribution that must not be counted, with the reason."""

    def __init__(self, member: str, why: str) -> None:
        super().__init__(f"{member}: {why}")
        self.member, self.why = member, why


def absurd_norm(member: str, norm: float, limit: float) -> Refused:
    """A norm that cannot be honest."""
    return Refused(member, f"an absurd norm: {norm:.3g}, where the group's median allows {limit:.3g}")


def segments(part: Part) -> list[slice]:
    """The pieces of a part that are encoded one by one."""
    return [segment_at(part, start) for start in range(part.start, part.stop, SEGMENT)]


def segment_at(part: Part, start: int) -> slice:
    """The piece of a part that begins there."""
    return slice(start, min(start + SEGMENT, part.stop))


def joined(blobs: Iterable[Blob], count: int = 0) -> tuple[bytes, ...]:
    """The blobs, copied into this process's own memory."""
    return tuple(b"".join(pieces) for pieces in blobs)


def contribution_of(blobs: Iterable[Blob | bytes], count: int = 0, place: Place = joined) -> Contribution:
    """Blobs with their sizes and the digest of all their bytes; ``count`` of them go to a ``place``."""
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
    """A part's encoded segments by their first element. Refused: they are not as many as the part has."""
    wanted = segments(part)
    if len(sizes) != len(wanted):
        raise Refused(member, f"{len(sizes)} pieces where part {part.index} has {len(wanted)}")
    return {here.start: blob for here, blob in zip(wanted, pieces_of(payload, sizes), strict=True)}
