"""The sections of a node that one rank of its island keeps.

Which rank keeps which follows from the sections' lengths. The vectors lie in memory that all ranks map (room.py), but
only the rank that keeps a section computes with them: it takes the optimiser's steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch

from ...state.optimizers.optimizers import Optimizer, squares_of, step_all
from ...state.sections.cut import even
from ...state.sections.section import Section


class RankSections:
    """``sections``: all sections of the node, in the same order on all ranks."""

    def __init__(self, sections: Sequence[Section], optimizer: Optimizer, rank: int, ranks: int) -> None:
        self.all = tuple(sections)
        heaps = even([section.layout.numel for section in sections], ranks)
        mine = heaps[rank]
        self.rank_of = {sections[index].layout.section: one for one, heap in enumerate(heaps) for index in heap}
        """The rank that keeps each section, by name."""
        self.own = tuple(sections[index] for index in mine)
        self._optimizer = optimizer
        for index, section in enumerate(sections):
            if section.room is not None:
                section.room.is_kept = index in mine
                if not section.room.is_kept:
                    section.room.let_go()

    @property
    def bytes_kept(self) -> int:
        """Bytes of the vectors that this rank keeps."""
        return sum(section.nbytes for section in self.own)

    def prepare(self, count: int, shares: Mapping[str, float]) -> None:
        """Gradient mode: make of each own gradient what the group sums; ``shares``: the node's share of the batch in
        each section. See `Optimizer.offer`."""
        with torch.no_grad():
            for section in self.own:
                self._optimizer.offer(section, count, shares[section.layout.section])

    def unscale(self, factor: float) -> None:
        """Multiply each own gradient by ``factor``."""
        for section in self.own:
            section.grad.mul_(factor)

    def squares(self, names: Collection[str], alone: Collection[str] = ()) -> dict[str, float]:
        """As `squares_of`, of the own sections."""
        return squares_of(self.own, names, alone)

    def step(self, count: int, rate: float, factor: float) -> None:
        """Take an optimiser step in each own section; see `step_all`."""
        with torch.no_grad():
            step_all(self._optimizer, self.own, count, rate, factor)
