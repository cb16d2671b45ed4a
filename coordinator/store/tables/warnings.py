"""Warnings for people."""

from __future__ import annotations

from ..connection import Connection


class WarningRows:
    """All warnings of the run, with the node that each is about ("" for the run)."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, now: float, node: str, message: str) -> None:
        """Store a warning."""
        self._connection.write(("insert into warnings (time, node, message) values (?, ?, ?)", (now, node, message)))

    def newest(self, last: int = 20) -> list[tuple[float, str, str]]:
        """The newest ``last`` warnings as (time, node, message), in order."""
        found = self._connection.read("select time, node, message from warnings order by id desc limit ?", (last,))
        return [(when, node, message) for when, node, message in found[::-1]]
