"""A piece of a round's update D, as it is added up here or as it came: the same bits on every member."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .. import compress


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
    """Sparse blobs that add up to D, with their weights: each of their few values is added where it belongs, which
    costs less than a pass over all. What no blob has stays as it is, even a -0.0, which adding 0.0 would make 0.0: so
    it is the round's codec, which all members share, that decides for this way, and not the device.

    Args:
        total: makes their sum, fp32 [n].
        known: as of ``compress.add``.
    """

    def __init__(
        self, terms: Sequence[tuple[float, bytes | memoryview]], total: Callable[[], Tensor], known: bool
    ) -> None:
        self._terms, self._total, self._known = terms, total, known

    def values(self) -> Tensor:
        return self._total()

    def add_to(self, *outs: Tensor) -> None:
        for out in outs:
            for weight, blob in self._terms:
                compress.add(blob, out, weight, self._known)


def void(count: int) -> Update:
    """Of a gradient that nobody may apply: NaN."""
    return Update(torch.full((count,), torch.nan))
