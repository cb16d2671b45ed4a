"""A piece of a round's update D, summed here or received: the same bits on every member."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .... import compress


class Update:
    """Values of D, fp32 [n], valid until the next piece is asked for."""

    def __init__(self, values: Tensor) -> None:
        self._values = values

    def values(self) -> Tensor:
        return self._values

    def add_to(self, *outs: Tensor) -> None:
        """Each of ``outs``, fp32 [n], += D."""
        values = self.values()
        for out in outs:
            out.add_(values)

    def write_to(self, out: Tensor) -> None:
        """``out``, fp32 [n], = D."""
        out.copy_(self.values())


class Encoded(Update):
    """A piece of D as an encoded blob. ``room``: a buffer, fp32 [n], for its values if they are asked for. ``known``:
    as in ``compress.add``."""

    def __init__(self, blob: bytes | memoryview, room: Tensor, known: bool) -> None:
        super().__init__(room)
        self._blob, self._known = blob, known

    def values(self) -> Tensor:
        self.write_to(self._values)
        return self._values

    def write_to(self, out: Tensor) -> None:
        compress.decode_into(self._blob, out, self._known)


class Terms(Update):
    """A piece of D as [(weight, blob)], blobs that sum to it. Sparse blobs are added to the target one by one: only
    their few values are touched, which on a CPU is faster than a pass over all. The bits differ from adding the sum,
    because (g + a) + b is not g + (a + b), and an element that no blob has keeps its -0.0. So the round's codec, which
    is the same for all members, decides whether this class is used, and not the device.

    Args:
        room: a buffer, fp32 [n], for the sum if it is asked for.
        known: as in ``compress.add``.
    """

    def __init__(self, terms: Sequence[tuple[float, bytes | memoryview]], room: Tensor, known: bool) -> None:
        super().__init__(room)
        self._terms, self._known = terms, known

    def values(self) -> Tensor:
        self.write_to(self._values)
        return self._values

    def add_to(self, *outs: Tensor) -> None:
        for weight, blob in self._terms:
            compress.add(blob, outs, weight, self._known)

    def write_to(self, out: Tensor) -> None:
        self.add_to(out.zero_())


def void(count: int) -> Update:
    """The update of a void part: NaN, so that no member applies the gradient."""
    return Update(torch.full((count,), torch.nan))
