"""A piece of a round's update D, as it is added up here or as it came: the same bits on every member."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import compress


class Update:
    """Values fp32 [n] of D that were added up here, good until the next piece is asked for."""

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
    """A blob of D.

    Args:
        room: fp32 [n], for its values if they are asked for.
        sparse: the round's codec sends few of the values, so that adding each where it belongs costs less than a pass
            over all of them. The others stay as they are, even a -0.0, which adding 0.0 would make 0.0: so it is the
            codec that says so, which all members share, and not the device.
        known: as of ``compress.add``.
    """

    def __init__(self, blob: bytes | memoryview, room: Tensor, sparse: bool, known: bool) -> None:
        super().__init__(room)
        self._blob, self._sparse, self._known = blob, sparse, known

    def values(self) -> Tensor:
        compress.decode_into(self._blob, self._values, self._known)
        return self._values

    def add_to(self, *outs: Tensor) -> None:
        if not self._sparse:
            super().add_to(*outs)
            return
        for out in outs:
            compress.add(self._blob, out, known=self._known)

    def write_to(self, out: Tensor) -> None:
        compress.decode_into(self._blob, out, self._known)


def void(count: int) -> Update:
    """Of a gradient that nobody may apply: NaN."""
    return Update(torch.full((count,), torch.nan))
