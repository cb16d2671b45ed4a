"""What one rank of an island holds of a parameter, and which part of the whole that is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Piece:
    """``dim``: the dimension that is cut; None: every rank has the whole. ``summed``: of whole ones the gradient is a
    sum over ranks; else each rank has the same."""

    parameter: nn.Parameter
    dim: int | None
    summed: bool = False

    @property
    def values(self) -> Tensor:
        """This rank's, in place."""
        return _local(self.parameter)

    @property
    def gradient(self) -> Tensor:
        """Of the same shape; zeros where no pass has reached the parameter."""
        gradient = self.parameter.grad
        return torch.zeros_like(self.values) if gradient is None else _local(gradient)

    @property
    def is_gathered(self) -> bool:
        """Whether the first rank needs the others' gradients."""
        return self.dim is not None or self.summed

    def of(self, whole: Tensor, ranks: int, rank: int) -> Tensor:
        """A rank's part of the whole parameter: a view."""
        if self.dim is None:
            return whole
        part = part_of(whole.shape[self.dim], ranks, rank)
        return whole.narrow(self.dim, part.start, part.stop - part.start)


def part_of(length: int, ranks: int, rank: int) -> slice:
    """What a rank holds of ``length`` rows: as ``torch.chunk`` cuts them, so that the last have fewer, or none."""
    size = -(-length // ranks)
    return slice(min(rank * size, length), min((rank + 1) * size, length))


def _local(values: Tensor) -> Tensor:
    return values.to_local() if isinstance(values, DTensor) else values
