"""A piece of a round's update D, as it is added up here or as it came: the same bits on every member."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .... import compress


class Update:
    """Values fp32 [n] of D, good until the next piece is asked for."""

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
    """A blob of D; ``room``: fp32 [n], for its values if they are asked for. ``known``: as of ``compress.add``."""

    def __init__(self, blob: bytes | memoryview, room: Tensor, known: bool) -> None:
        super().__init__(room)
        self._blob, self._known = blob, known

    def values(self) -> Tensor:
        self.write_to(self._values)
        return self._values

    def write_to(self, out: Tensor) -> None:
        compress.decode_into(self._blob, out, self._known)


class Terms(Update):
    """Blobs that add up to D, [(weight, blob)]. Of sparse ones each of their few values is added where it belongs,
    which on a CPU costs less than a pass over all. (g + a) + b is not g + (a + b) to the bit, and what no blob has
    stays a -0.0 if it is one: so the round's codec, which all members share, decides for this way, not the device.

    Args:
        room: fp32 [n], for the sum if it is asked for.
        known: as of ``compress.add``.
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
    """Of a gradient that nobody may apply: NaN."""
    return Update(torch.full((count,), torch.nan))
