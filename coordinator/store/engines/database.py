"""The interface of a run's database: SQLite in the state folder (sqlite.py) or a server (postgresql.py).

Both take the same statements (``?`` for a value) and give plain tuples. ``write`` is one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ....proto.errors import FarflungError

Statement = tuple[str, Sequence[Any]]
Rows = list[tuple[Any, ...]]


class NoRoom(FarflungError):
    """The database can't be written now, usually because its disk is full; later this may work."""

    hint_for_file = "make room on that disk"


class Locked(NoRoom):
    """Another process holds the file."""

    hint_for_file = "end the program that writes it too (`lsof` shows which), or let it finish"


class LeaseLost(FarflungError):
    """This coordinator does not lead any more, or can't find out: its lease has ended, or the database does not
    answer."""


class Database(Protocol):
    """The methods that a store calls."""

    name: str
    shared: bool
    """Whether coordinators on other machines use it too."""

    def read(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        """The rows of one query."""

    def write(self, statements: Sequence[Statement]) -> int:
        """Execute all statements or none. Returns the number of rows that the last one changed. Raises NoRoom or
        LeaseLost."""

    def close(self) -> None:
        """Close it; may be called twice."""


def storable(values: Sequence[Any]) -> list[Any]:
    """The values, where texts have no unpaired surrogates, which no database can store."""
    return [value.encode(errors="replace").decode() if isinstance(value, str) else value for value in values]
