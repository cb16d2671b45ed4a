"""Segments that a device encodes one after the other while the host waits for it once, not once for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from ....compress.blobs.pieces import Packed, Staged, fetch_packed
from ...wire.api import Blob

AT_ONCE = 1 << 26
"""Bytes of encodings that wait on the device: as many again while they are copied."""


def encoded(
    pieces: Iterable[slice],
    offered: Callable[[slice], Tensor],
    stage: Callable[[Tensor, slice], Staged],
    norms: list[float],
) -> Iterator[Blob]:
    """The blobs of a vector's pieces, which lie on a device, in order; the Euclidean norm of each piece is added to
    ``norms``. ``offered(piece)``: its values, valid until the next call. ``stage(values, piece)``: begins to encode.

    Raises:
        compress.CodecError: a value is not finite.
    """
    waiting: list[tuple[slice, Packed, Tensor]] = []

    def fetched() -> Iterator[Blob]:
        lengths = torch.stack([norm for _, _, norm in waiting])
        blobs, (lengths,) = fetch_packed([packed for _, packed, _ in waiting], [lengths])
        norms.extend(lengths.tolist())
        for (here, _, _), blob in zip(waiting, blobs, strict=True):
            # A value may not be finite, or only the sum of all: the codec looks at the values again, and waits.
            yield stage(offered(here), here).pieces() if blob is None else blob
        waiting.clear()

    for here in pieces:
        values = offered(here)
        waiting.append((here, stage(values, here).packed(), torch.linalg.vector_norm(values)))
        if sum(packed.nbytes for _, packed, _ in waiting) >= AT_ONCE:
            yield from fetched()
    if waiting:
        yield from fetched()


def all_finite(vectors: Callable[[], Iterable[Tensor]]) -> bool:
    """Whether all values of ``vectors()`` are finite; each vector is used before the next is asked for. A finite sum
    shows it: so on a device the host waits once, unless a sum is not."""
    sums = []
    for values in vectors():
        total = values.sum()
        if total.device.type != "cpu":
            sums.append(total)
        elif not math.isfinite(float(total)) and not bool(torch.isfinite(values).all()):
            return False
    if not sums or bool(torch.isfinite(torch.stack(sums)).all()):
        return True
    return all(bool(torch.isfinite(values).all()) for values in vectors())
