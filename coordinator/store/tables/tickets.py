"""Tickets: the secrets in links, of which only digests are stored."""

from __future__ import annotations

from ..connection import Connection
from ..rows import Ticket
from ..schema import NAMES, upsert


class TicketRows:
    """``farflung coordinator token`` writes here from a process of its own, so nothing here waits in memory."""

    def __init__(self, connection: Connection) -> None:
        self._database = connection.database
        self._connection = connection

    def add(self, ticket: Ticket) -> None:
        """Add a ticket. NoRoom: it was not stored, so its link must not be shown."""
        self._database.write([upsert(NAMES[Ticket], ticket.__dict__)])

    def numbered(self, number: str) -> Ticket | None:
        """A ticket by id."""
        return self._connection.first(Ticket, "where number = ?", number)

    def all(self) -> list[Ticket]:
        """All tickets, oldest first."""
        return self._connection.rows(Ticket, "order by created")

    def take_use(self, number: str) -> bool:
        """Take one use; False when none is left. Atomic between processes."""
        sql = "update tickets set uses = uses - 1 where number = ? and (uses is null or uses > 0)"
        return self._database.write([(sql, (number,))]) > 0

    def revoke(self, number: str) -> bool:
        """Make a ticket invalid; False when there is none of that id."""
        return self._database.write([("update tickets set revoked = 1 where number = ?", (number,))]) > 0
