"""Adafactor (Shazeer and Stern, 2018): of a matrix's second moment only the means of its rows and columns are kept."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ....proto.words.moments import factored
from ..sections.moments import STRETCH
from ..sections.section import Section, Stretch
from .optimizers import OfGradients, root

DECAY = 0.8
"""The second moment of step t keeps 1 - t^-0.8 of what it was."""
CLIP = 1.0
"""The largest root mean square of a parameter's update, before the learning rate."""
EPS = 1e-30
_PIECE = 1 << 24
"""Elements of a matrix that a GPU takes at a time: this bounds the temporaries."""
_NARROW = 64
"""The fewest columns of a piece: they are read from each row."""


class Adafactor(OfGradients):
    """As ``transformers.Adafactor`` with ``scale_parameter=False, relative_step=False``: no first moment, the learning
    rate is the job's, updates are clipped by their root mean square. The last two dimensions of a parameter are a
    matrix's; others before them count matrices (experts). As with the other optimisers, vectors are not decayed.

    Sums are taken by halves, element by element, so that all devices get the same bits.
    """

    moments: tuple[str, ...] = ("v",)
    factored = True

    def __init__(self, weight_decay: float) -> None:
        self.weight_decay = weight_decay

    def step(self, section: Section, count: int, rate: float) -> None:
        stays = 1 - count**-DECAY
        for here in section.stretches(count, whole=True):
            if self.weight_decay and here.is_matrix:
                here.x.sub_(here.x * (rate * self.weight_decay))
            if factored(here.shape) == here.shape:
                _whole(here, stays, rate)
            else:
                _by_sides(here, stays, rate)


def _whole(here: Stretch, stays: float, rate: float) -> None:
    """The step of a parameter whose second moment is kept whole."""
    v = here.moments["v"]
    v.mul_(stays).add_((here.grad * here.grad).add_(EPS).mul_(1 - stays))
    update = here.grad / root(v)
    here.x.sub_(update.mul_(_clipped(rate, folded(update * update, 0), update.numel())))


def _by_sides(here: Stretch, stays: float, rate: float) -> None:
    """The step of a matrix, or of several: element (i, j) of the second moment is row i's mean times column j's, over
    the mean of all."""
    rows, columns = here.shape[-2:]
    most = 4 * STRETCH if here.grad.device.type == "cpu" else _PIECE
    grads, weights = (vector.view(-1, rows, columns) for vector in (here.grad, here.x))
    sides = here.moments["v"].view(-1, rows + columns)
    down, across = max(1, most // columns), max(_NARROW, most // rows)
    of_rows, of_columns = sides[:, :rows], sides[:, rows:]
    new_rows, new_columns = torch.empty_like(of_rows), torch.empty_like(of_columns)
    for grad, by_row, by_column in zip(grads, new_rows, new_columns, strict=True):
        for part, sums in zip(grad.split(down), by_row.split(down), strict=True):
            sums.copy_(folded(part * part, 1))
        for part, sums in zip(grad.split(across, 1), by_column.split(across), strict=True):
            sums.copy_(folded(part * part, 0))
    of_rows.mul_(stays).add_(new_rows.mul_(1 / columns).add_(EPS).mul_(1 - stays))
    of_columns.mul_(stays).add_(new_columns.mul_(1 / rows).add_(EPS).mul_(1 - stays))
    mean = folded(of_rows.clone(), 1).mul_(1 / rows)
    by_row = root(mean)[:, None] / root(of_rows)
    by_column = torch.ones_like(of_columns) / root(of_columns)

    def updates() -> Iterator[tuple[int, int, Tensor]]:
        """(matrix, first row, its rows' update), computed twice in place of keeping it."""
        for index, (grad, r, c) in enumerate(zip(grads, by_row, by_column, strict=True)):
            for first in range(0, rows, down):
                yield index, first, (grad[first : first + down] * r[first : first + down, None]).mul_(c)

    squares = torch.empty_like(of_rows)
    for index, first, update in updates():
        squares[index, first : first + down] = folded(update.mul_(update), 1)
    factor = _clipped(rate, folded(squares.view(-1), 0), here.grad.numel())
    for index, first, update in updates():
        weights[index, first : first + down].sub_(update.mul_(factor))


def folded(values: Tensor, dim: int) -> Tensor:
    """The sums over a dimension, by halves: the same bits on every device. Overwrites ``values``."""
    left = values.shape[dim]
    while left > 1:
        half = (left + 1) // 2
        values.narrow(dim, 0, left - half).add_(values.narrow(dim, half, left - half))
        left = half
    return values.select(dim, 0)


def _clipped(rate: float, squares: Tensor, count: int) -> Tensor:
    """The factor of an update of ``count`` elements with this sum of squares, as a tensor without dimensions: no device
    is waited for."""
    size = root(squares.mul(1 / count).view(1))
    return (torch.full_like(size, rate * CLIP) / size.clamp(min=CLIP))[0]
