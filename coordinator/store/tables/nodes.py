"""Nodes: their keys, their sessions, and when each left."""

from __future__ import annotations

from ..connection import Connection
from ..rows import NodeRow


class NodeRows:
    """All nodes that ever joined the run, by name."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def put(self, row: NodeRow) -> None:
        """Add a node, or replace what is known of that name."""
        self._connection.put([row])

    def named(self, name: str) -> NodeRow | None:
        """The node of exactly this name."""
        return self._connection.first(NodeRow, "where name = ?", name)

    def called(self, name: str) -> NodeRow | None:
        """The node of this name in any case. In databases of older versions, names may differ only by case: then the
        exact one."""
        rows = self._connection.rows(NodeRow, "where lower(name) = ? order by joined", name.lower())
        return next((row for row in rows if row.name == name), next(iter(rows), None))

    def all(self) -> list[NodeRow]:
        """All nodes, in the order in which they joined."""
        return self._connection.rows(NodeRow, "order by joined, name")

    def left(self, name: str, session: str, now: float, why: str) -> None:
        """Note that this session of a node has ended; a later session of that name goes on."""
        sql = "update nodes set left_at = ?, why = ? where name = ? and session = ?"
        self._connection.write((sql, (now, why, name, session)))
