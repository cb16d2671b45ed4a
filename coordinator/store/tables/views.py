"""Views: each is stored before any node is told of it."""

from __future__ import annotations

import json

from ..connection import Connection
from ..rows import ViewRow
from ..schema import upsert
from ..sums import Sums

_AFTER_ITS_STEP = ("steps", "evals", "eval_sets")


class ViewRows:
    """All views of the run."""

    def __init__(self, connection: Connection, sums: Sums) -> None:
        self._connection, self._sums = connection, sums

    def put(self, row: ViewRow) -> None:
        """Store a view. Steps and evaluations after its first step are deleted: the run trains them again."""
        gone = [(f"delete from {table} where step > ?", (row.step,)) for table in _AFTER_ITS_STEP]
        self._sums.forget()
        self._connection.write(upsert("views", row.__dict__), *gone)

    def last(self) -> ViewRow | None:
        """The newest view."""
        return self._connection.first(ViewRow, "order by number desc limit 1")

    def all(self) -> list[ViewRow]:
        """All views, oldest first."""
        return self._connection.rows(ViewRow, "order by number")

    def begun(self) -> tuple[int, int] | None:
        """The step after which the newest view began, and the samples that its weights have seen."""
        view = self.last()
        return None if view is None else (view.step, view.cursor - len(json.loads(view.redo or "[]")))
