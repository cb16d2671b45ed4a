"""The database of a run: one SQLite file (WAL) in the state folder, which can be read while the coordinator writes it,
or a PostgreSQL database for coordinators on several machines.

Every method is one short transaction. The coordinator is the only writer of everything but tickets, which ``farflung
coordinator token`` adds from another process. When the database's disk is full, or another process locks the file,
writes wait in memory, in order (``catch_up``); writes of tickets fail instead.
"""

from __future__ import annotations

from pathlib import Path

from ...proto.errors import FarflungError
from .connection import Connection
from .engines.database import Database
from .engines.postgresql import PostgreSQL
from .engines.sqlite import SQLite
from .schema import SCHEMA, upsert
from .sums import Sums
from .tables.checkpoints import CheckpointRows
from .tables.evals import EvalRows
from .tables.links import LinkRows
from .tables.nodes import NodeRows
from .tables.steps import StepRows
from .tables.tickets import TicketRows
from .tables.views import ViewRows
from .tables.warnings import WarningRows
from .tables.work import WorkRows
from .writer import Writer

LOCKED_S = 0.25
"""Seconds that a running coordinator waits for another process that locks the file; its event loop stands still
meanwhile."""


class Store:
    """The database of one run: its tables, and its facts by name (``get``, ``put``). Not thread safe."""

    def __init__(self, place: Path | str, create: bool = False) -> None:
        """Open STATE/run.sqlite, or the database of a postgresql:// address.

        FarflungError when there is no run (unless ``create``) or it cannot be read.
        """
        self.place = place
        self._connection = Connection(place, create)
        self._sums = Sums(self.database, self.writer)
        try:
            schema = self.get("schema")
            if schema is None:
                self.put("schema", str(SCHEMA))
            elif schema != str(SCHEMA):
                raise FarflungError(f"{self.name} was written by another version (schema {schema}, this one {SCHEMA})")
        except BaseException:
            self.close()
            raise
        self.nodes = NodeRows(self._connection)
        self.tickets = TicketRows(self._connection)
        self.views = ViewRows(self._connection, self._sums)
        self.steps = StepRows(self._connection, self._sums, self.views)
        self.evals = EvalRows(self._connection)
        self.checkpoints = CheckpointRows(self._connection)
        self.work = WorkRows(self._connection)
        self.warnings = WarningRows(self._connection)
        self.links = LinkRows(self._connection)

    @property
    def database(self) -> Database:
        """SQLite or PostgreSQL."""
        return self._connection.database

    @property
    def writer(self) -> Writer:
        """The writer, with the waiting writes."""
        return self._connection.writer

    @property
    def name(self) -> str:
        """The database's name for people."""
        return self.database.name

    @property
    def server(self) -> PostgreSQL | None:
        """The database server with the lease, when the run is in one; else None."""
        return self.database if isinstance(self.database, PostgreSQL) else None

    @property
    def leads(self) -> bool:
        """Whether this coordinator may give orders: always, unless others use the database too."""
        return self.server is None or self.server.leads

    @property
    def is_behind(self) -> bool:
        """Whether a write waits in memory."""
        return bool(self.writer.late)

    @property
    def given_up(self) -> int:
        """Number of rows for people that were dropped, because too many writes waited."""
        return self.writer.given_up

    def close(self) -> None:
        """Close it; calling it twice is fine."""
        self.database.close()

    def catch_up(self) -> str:
        """Write what waits. Returns why that still fails; empty when nothing waits any more."""
        return self.writer.catch_up()

    def hurry(self) -> None:
        """From now on wait at most ``LOCKED_S`` for another process that locks the file."""
        if isinstance(self.database, SQLite):
            self.database.wait_at_most(LOCKED_S)

    def get(self, key: str) -> str | None:
        """A fact by name: schema, run, job, facts, term, address, insecure, phase, why, began, bytes, target ..."""
        found = self.database.read("select value from meta where key = ?", (key,))
        return str(found[0][0]) if found else None

    def put(self, key: str, value: str) -> None:
        """Set a fact by name."""
        self.writer.write(upsert("meta", {"key": key, "value": value}))

    def next_term(self) -> int:
        """One more than the last start's term, stored; with a database server it is the lease's."""
        term = self.server.term if self.server else int(self.get("term") or 0) + 1
        self.put("term", str(term))
        self._sums.forget()  # another coordinator may have led meanwhile
        if why := self.catch_up():
            raise FarflungError(why, "make room, then start again")
        return term
