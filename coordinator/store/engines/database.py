"""What a run's store needs of its database, be it SQLite in the state folder (sqlite.py) or a server (postgresql.py).

Both take the same statements (``?`` for a value) and give plain tuples. ``write`` is one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ....proto.errors import FarflungError

Statement = tuple[str, Sequence[Any]]
Rows = list[tuple[Any, ...]]


class NoRoom(FarflungError):
    """The database cannot be written now, mostly because the disk under it is full; later it may be."""

    hint_for_file = "make room on that disk"


class Locked(NoRoom):
    """Another process holds the file."""

    hint_for_file = "end the program that writes it too (`lsof` shows which), or let it finish"


class LeaseLost(FarflungError):
    """This coordinator does not lead any more, or cannot know: its lease ended, or the database is away."""


class Database(Protocol):
    """What a store needs of its database."""

    name: str
    shared: bool
    """Whether coordinators on other machines use it too."""

    def read(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        """The rows of one query."""

    def write(self, statements: Sequence[Statement]) -> int:
        """All or none of them; how many rows the last one changed. NoRoom, LeaseLost."""

    def close(self) -> None:
        """Twice is fine."""


def storable(values: Sequence[Any]) -> list[Any]:
    """Text without halves of surrogate pairs, which no database holds."""
    return [value.encode(errors="replace").decode() if isinstance(value, str) else value for value in values]
