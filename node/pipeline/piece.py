"""The part of a parameter that one rank of an island holds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from .inside.grid import Grid


@dataclass(frozen=True)
class Piece:
    """A parameter's part. What the ranks of a row share is cut first, then dimension 0 over the rows of ranks.

    ``dim``: the dimension that is cut over the ranks of a row; None: each of them has the same part. ``summed``: the
    gradient of such a parameter must be summed over the ranks of a row; otherwise each of them has the same gradient.
    """

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

    def is_gathered(self, grid: Grid, rank: int) -> bool:
        """Whether the first rank needs the gradient of rank ``rank``."""
        return self.dim is not None or self.summed or grid.place(rank)[1] == 0

    def is_added(self, grid: Grid, rank: int) -> bool:
        """Whether that gradient is one of several to be added up."""
        return self.dim is None and grid.place(rank)[1] > 0

    def of(self, whole: Tensor, grid: Grid, rank: int) -> Tensor:
        """The part of the whole parameter that rank ``rank`` holds: a view."""
        row, column = grid.place(rank)
        if self.dim is not None:
            whole = _part(whole, self.dim, grid.columns, column)
        return _part(whole, 0, grid.rows, row)


def part_of(length: int, ranks: int, rank: int) -> slice:
    """The rows of ``length`` that a rank holds, cut as by ``torch.chunk``: the last ranks have fewer rows, or none."""
    size = -(-length // ranks)
    return slice(min(rank * size, length), min((rank + 1) * size, length))


def _part(whole: Tensor, dim: int, ranks: int, rank: int) -> Tensor:
    if ranks == 1:
        return whole
    part = part_of(whole.shape[dim], ranks, rank)
    return whole.narrow(dim, part.start, part.stop - part.start)


def _local(values: Tensor) -> Tensor:
    return values.to_local() if isinstance(values, DTensor) else values
