"""The only access to a run's database: opening it, reading rows, writing them in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ...proto.errors import FarflungError
from .engines.database import Database, Rows, Statement
from .engines.postgresql import PostgreSQL
from .engines.sqlite import FILE, SQLite
from .schema import ADDED, NAMES, TABLES, Row, upsert
from .writer import Writer


class Connection:
    """An open database. Writes that fail for want of room wait in ``writer``, in order."""

    def __init__(self, place: Path | str, create: bool) -> None:
        """Open STATE/run.sqlite, or the database of a postgresql:// address. FarflungError: there is no database."""
        self.database = _open(place, create)
        self.writer = Writer(self.database)

    def read(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        """The rows of one query, as plain tuples."""
        return self.database.read(sql, values)

    def rows(self, kind: type[Row], rest: str = "", *values: Any) -> list[Row]:
        """The rows of a table that ``rest`` selects and orders."""
        columns = [field.name for field in fields(kind)]
        found = self.read(f"select {', '.join(columns)} from {NAMES[kind]} {rest}", values)
        return [kind(**dict(zip(columns, row, strict=True))) for row in found]

    def first(self, kind: type[Row], rest: str, *values: Any) -> Row | None:
        """The first of these rows."""
        return next(iter(self.rows(kind, rest, *values)), None)

    def by_step(self, kind: type[Row], last: int | None) -> list[Row]:
        """All rows of a table, or those of the newest ``last`` steps, in order."""
        if last is None:
            return self.rows(kind, "order by step")
        return self.rows(kind, "order by step desc limit ?", last)[::-1]

    def write(self, *statements: Statement) -> None:
        """Write these statements in one transaction, or queue them."""
        self.writer.write(*statements)

    def put(self, rows: Iterable[Any]) -> None:
        """Insert rows, or replace those with their keys, in one transaction."""
        if statements := [upsert(NAMES[type(row)], row.__dict__) for row in rows]:
            self.writer.write(*statements)


def _open(place: Path | str, create: bool) -> Database:
    if str(place).startswith(("postgresql://", "postgres://")):
        return PostgreSQL(str(place), TABLES if create else "")
    state = Path(place)
    path = state / FILE
    if not create and not path.exists():
        raise FarflungError(
            f"there is no run in {state}", "give the state folder of a run; `farflung runs` lists those below runs/"
        )
    try:
        if create:
            state.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FarflungError(f"cannot make {state}: {error.strerror}") from None
    return SQLite(path, TABLES, ADDED)
