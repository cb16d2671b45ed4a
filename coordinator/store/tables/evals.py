"""Evaluations: their losses, and those of each set of samples."""

from __future__ import annotations

from collections.abc import Sequence

from ..connection import Connection
from ..rows import EvalRow, SetRow


class EvalRows:
    """All evaluations of the run that count."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def put(self, row: EvalRow) -> None:
        """Store an evaluation."""
        self._connection.put([row])

    def all(self) -> list[EvalRow]:
        """All evaluations, in order."""
        return self._connection.by_step(EvalRow, None)

    def newest(self, last: int) -> list[EvalRow]:
        """The newest ``last`` evaluations, in order."""
        return self._connection.by_step(EvalRow, last)

    def put_sets(self, rows: Sequence[SetRow]) -> None:
        """Store the result of an evaluation on each set."""
        self._connection.put(rows)

    def sets(self, step: int) -> list[SetRow]:
        """The results on each set of the evaluation after a step, ordered by the sets' names."""
        return self._connection.rows(SetRow, "where step = ? order by name", step)
