"""Sessions: the nodes that passed the join checks and have not left, with their rows of the database."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace

from ...store.rows import NodeRow
from ...store.store import Store
from ...trust.tickets import digest

_NOT_BACK = "it has not come back since the coordinator started again"


class Sessions:
    """One session for each name: a join with the same name and key replaces the one before."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows = {row.name: row for row in store.nodes.all() if row.left_at is None}

    def get(self, name: str) -> NodeRow | None:
        """A node's present session."""
        return self._rows.get(name)

    def knows(self, name: str, session: str, secret: str) -> bool:
        """Whether this is a session of the run, and its secret."""
        row = self._rows.get(name)
        return row is not None and row.session == session and row.secret_hash == digest(secret)

    def meets(self, name: str, session: str) -> bool:
        """Whether this is a session of a node that can't be dialled, so that others may meet it at the relay."""
        row = self._rows.get(name)
        return row is not None and row.session == session and bool(row.dials_out)

    @property
    def tickets(self) -> dict[str, str]:
        """Name -> the ticket by which the node joined."""
        return {name: row.ticket for name, row in self._rows.items()}

    def admit(self, row: NodeRow) -> None:
        """A node's session begins."""
        self._rows[row.name] = row

    def comes_back(self, name: str) -> NodeRow:
        """Restore a session from before this coordinator's start."""
        row = self._rows[name] = replace(self._rows[name], left_at=None)
        self._store.nodes.put(row)
        return row

    def ended(self, name: str, session: str, why: str) -> None:
        """A session is over, if it is still the node's present one."""
        row = self._rows.get(name)
        if row is not None and row.session == session:
            self._store.nodes.left(name, session, time.time(), why)
            del self._rows[name]

    def forget(self, name: str) -> None:
        """Forget a node, so that its name is free again."""
        self._rows.pop(name, None)

    def note_absent(self, present: Collection[str]) -> None:
        """A view begins without nodes of an earlier start: they count as gone, but their sessions may come back."""
        for name, row in self._rows.items():
            if name not in present and row.left_at is None:
                self._rows[name] = replace(row, left_at=time.time())
                self._store.nodes.left(name, row.session, time.time(), _NOT_BACK)
