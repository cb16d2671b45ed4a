"""The ranks of an island as a grid: rows of ranks share the samples and the parameters' rows, columns the matrices."""

from __future__ import annotations

from dataclasses import dataclass

from ....proto.errors import FarflungError
from ....scheduler.networks.devices import MOST_CARDS
from ....scheduler.workloads import inside as planned

FSDP, TP, BOTH = "fsdp", "tp", "fsdp+tp"


@dataclass(frozen=True)
class Grid:
    """``rows`` x ``columns`` ranks, numbered row by row. Ranks of one row compute the same samples."""

    rows: int
    columns: int

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.rows * self.columns

    def place(self, rank: int) -> tuple[int, int]:
        """(row, column) of a rank."""
        return divmod(rank, self.columns)


def grid_of(inside: str, ranks: int, shares: int) -> Grid:
    """The grid of an island with ``parallel.inside`` = ``inside``, the one that plans count with.

    ``shares``: the model's matrices may be shared by each divisor of this number (matrix_plan.py).

    Raises:
        FarflungError: so many ranks cannot be arranged.
    """
    found = planned.grid_of(inside, ranks, shares)
    if found is not None:
        return Grid(*found)
    fit = [count for count in range(2, MOST_CARDS + 1) if planned.grid_of(inside, count, shares)]
    raise FarflungError(
        f'parallel.inside = "{inside}": {ranks} devices are no rows and columns whose matrices this model can share',
        f"use --island {' or '.join(map(str, fit[:3]))}" if fit else 'write inside = "fsdp" under [parallel]',
    )
