"""A run's database as one file in its state folder. It belongs to the process that holds the folder's lock."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....proto.errors import FarflungError
from .database import Locked, NoRoom, Rows, Statement, storable

FILE = "run.sqlite"


class SQLite:
    """One file (WAL), readable while it is written."""

    shared = False

    def __init__(self, path: Path, tables: str, columns: Sequence[tuple[str, str]]) -> None:
        """Open and bring up to date: ``columns`` (table, column) are those that older files lack."""
        self.name = str(path)
        try:
            self._db = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
            self._db.execute("pragma journal_mode=wal")
            self._db.execute("pragma synchronous=normal")
            self._db.executescript(tables)
            for table, column in columns:
                known = {found[1] for found in self._db.execute(f"pragma table_info({table})")}
                if column.split()[0] not in known:
                    self._db.execute(f"alter table {table} add column {column}")
        except (sqlite3.Error, OSError) as error:
            raise FarflungError(f"cannot open {path}: {error}") from None

    def read(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        return self._db.execute(sql, storable(values)).fetchall()

    def write(self, statements: Sequence[Statement]) -> int:
        changed = 0
        try:
            self._db.execute("begin immediate")
            for sql, values in statements:
                changed = self._db.execute(sql, storable(values)).rowcount
            self._db.execute("commit")
        except BaseException as error:
            if self._db.in_transaction:
                self._db.execute("rollback")
            if isinstance(error, sqlite3.OperationalError) and (kept := _passing(str(error))) is not None:
                raise kept(f"cannot write {self.name}: {error}", kept.hint_for_file) from None
            raise
        return changed

    def wait_at_most(self, seconds: float) -> None:
        """Wait at most this many seconds for another writing process before a statement raises Locked."""
        self._db.execute(f"pragma busy_timeout = {round(1000 * seconds)}")

    def close(self) -> None:
        self._db.close()


def _passing(message: str) -> type[NoRoom] | None:
    """The NoRoom error for a message of SQLite after which writing may work later; None for other messages."""
    if "locked" in message or "busy" in message:
        return Locked
    return NoRoom if any(words in message for words in ("full", "disk I/O", "readonly", "unable to open")) else None
