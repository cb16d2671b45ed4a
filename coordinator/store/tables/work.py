"""Work: the samples that each node has trained, and the scores that judges gave it."""

from __future__ import annotations

from collections.abc import Iterable

from ..connection import Connection
from ..rows import ScoreRow, WorkRow


class WorkRows:
    """Work and scores of all nodes. observe/useful_work.py computes the ledger from them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def put(self, works: Iterable[WorkRow], scores: Iterable[ScoreRow] = ()) -> None:
        """Store both in one transaction."""
        self._connection.put([*works, *scores])

    def done(self) -> list[WorkRow]:
        """What each node has trained, ordered by name."""
        return self._connection.rows(WorkRow, "order by node")

    def scores(self) -> list[ScoreRow]:
        """Each judge's scores of each node, ordered by node and judge."""
        return self._connection.rows(ScoreRow, "order by node, judge")
