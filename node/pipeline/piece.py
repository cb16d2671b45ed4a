"""The part of a parameter that one rank of an island holds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Piece:
    """``dim``: the dimension that is cut; None: every rank has the whole parameter. ``summed``: the gradient of a whole
    parameter must be summed over the ranks; otherwise each rank has the same gradient."""

    parameter: nn.Parameter
    dim: int | None
    summed: bool = False

    @property
    def values(self) -> Tensor:
        """This rank's part of the parameter, in place."""
        return _local(self.parameter)

    @property
    def gradient(self) -> Tensor:
        """This rank's part of the gradient, of the shape of ``values``; zeros if no backward pass reached it."""
        gradient = self.parameter.grad
        return torch.zeros_like(self.values) if gradient is None else _local(gradient)

    @property
    def is_gathered(self) -> bool:
        """Whether the first rank needs the others' gradients."""
        return self.dim is not None or self.summed

    def of(self, whole: Tensor, ranks: int, rank: int) -> Tensor:
        """The part of the whole parameter that rank ``rank`` of ``ranks`` holds: a view."""
        if self.dim is None:
            return whole
        part = part_of(whole.shape[self.dim], ranks, rank)
        return whole.narrow(self.dim, part.start, part.stop - part.start)


def part_of(length: int, ranks: int, rank: int) -> slice:
    """The rows of ``length`` that a rank holds, cut as by ``torch.chunk``: the last ranks have fewer rows, or none."""
    size = -(-length // ranks)
    return slice(min(rank * size, length), min((rank + 1) * size, length))


def _local(values: Tensor) -> Tensor:
    return values.to_local() if isinstance(values, DTensor) else values
