"""The ranks of an island as a grid: rows of ranks share the samples and the parameters' rows, columns the matrices."""

from __future__ import annotations

from dataclasses import dataclass

from ....proto.errors import FarflungError

DDP, FSDP, TP, BOTH = "ddp", "fsdp", "tp", "fsdp+tp"


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
    """The grid of an island with ``parallel.inside`` = ``inside``.

    ``shares``: the model's matrices may be shared by each divisor of this number (matrix_plan.py).

    Of both, the columns are as few as possible: a column sums activations twice a block, and a row gathers parameters
    once a block.

    Raises:
        FarflungError: "fsdp+tp", and so many ranks cannot be arranged.
    """
    if inside != BOTH:
        return Grid(1, ranks) if inside == TP else Grid(ranks, 1)
    for columns in range(2, ranks):
        if ranks % columns == 0 and shares % columns == 0:
            return Grid(ranks // columns, columns)
    fit = [count for count in range(4, 65) if any(count % c == 0 and shares % c == 0 for c in range(2, count))]
    raise FarflungError(
        f'parallel.inside = "fsdp+tp": {ranks} devices are no rows and columns whose matrices this model can share',
        f"use --island {' or '.join(map(str, fit[:3]))}" if fit else 'write inside = "fsdp" under [parallel]',
    )
