"""What a run remembers: one SQLite file (WAL) in the state folder, readable while the coordinator writes it.

Every method is one short transaction. The coordinator is the only writer of everything but tickets, which
``farflung coordinator token`` adds from a process of its own.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from ..proto.errors import FarflungError

FILE = "run.sqlite"
SCHEMA = 1

_TABLES = """
create table if not exists meta (key text primary key, value text not null);
create table if not exists nodes (
    name text primary key, session text, secret_hash text, key_hash text, address text, device text,
    joined real, left_at real, why text, dials_out integer not null default 0);
create table if not exists tickets (
    number text primary key, secret_hash text, created real, expires real, uses integer, revoked integer);
create table if not exists views (
    number integer primary key, plan text, members text, step integer, cursor integer, redo text, checkpoint integer,
    why text, time real);
create table if not exists steps (
    step integer primary key, view integer, loss real, samples integer, tokens integer, seconds real,
    bytes_updates integer, bytes_activations integer, bytes_other integer, bytes_dense integer,
    bytes_dense_updates integer, notes text, time real);
create table if not exists evals (step integer primary key, loss real, tokens integer, accuracy real, time real);
create table if not exists checkpoints (step integer primary key, path text, cursor integer, redo text, time real);
create table if not exists warnings (id integer primary key, time real, node text, message text);
create table if not exists links (
    source text, target text, latency_s real, bandwidth_bps real, time real, primary key (source, target));
"""


@dataclass(frozen=True)
class NodeRow:
    """A node that is or was in the run. ``left_at`` None: still in. ``device`` is JSON of proto Device.

    ``dials_out``: nobody can dial it at ``address``.
    """

    name: str
    session: str
    secret_hash: str
    key_hash: str
    address: str
    device: str
    joined: float
    left_at: float | None = None
    why: str = ""
    dials_out: bool = False


@dataclass(frozen=True)
class Ticket:
    """A ticket: ``expires`` seconds since the epoch or None, ``uses`` left or None for any number."""

    number: str
    secret_hash: str
    created: float
    expires: float | None
    uses: int | None
    revoked: bool


@dataclass(frozen=True)
class ViewRow:
    """A view as announced: plan and members as JSON, where the training stream stands, why it was made."""

    number: int
    plan: str
    members: str
    step: int
    cursor: int
    redo: str
    checkpoint: int
    why: str
    time: float


@dataclass(frozen=True)
class StepRow:
    """A finished step, summed over all nodes; ``loss`` in nats per token, None when no last stage reported it."""

    step: int
    view: int
    loss: float | None
    samples: int
    tokens: int
    seconds: float
    bytes_updates: int
    bytes_activations: int
    bytes_other: int
    bytes_dense: int
    bytes_dense_updates: int
    notes: str
    time: float


@dataclass(frozen=True)
class EvalRow:
    """An evaluation: ``loss`` in nats per token (or sample), ``accuracy`` None where nothing is counted."""

    step: int
    loss: float
    tokens: int
    accuracy: float | None
    time: float


@dataclass(frozen=True)
class CheckpointRow:
    """A complete checkpoint and where the training stream stands after its step."""

    step: int
    path: str
    cursor: int
    redo: str
    time: float


Row = TypeVar("Row", NodeRow, Ticket, ViewRow, StepRow, EvalRow, CheckpointRow)
_NAMES: dict[type, str] = {
    NodeRow: "nodes",
    Ticket: "tickets",
    ViewRow: "views",
    StepRow: "steps",
    EvalRow: "evals",
    CheckpointRow: "checkpoints",
}


class Store:
    """The database of one run. Not thread safe."""

    def __init__(self, state: Path, create: bool = False) -> None:
        """Open STATE/run.sqlite; FarflungError when there is none (unless ``create``) or it cannot be read."""
        self.path = state / FILE
        if not create and not self.path.exists():
            raise FarflungError(f"there is no run in {state}", "give the state folder that `coordinator start` printed")
        try:
            if create:
                state.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, timeout=10, isolation_level=None, check_same_thread=False)
            self._db.execute("pragma journal_mode=wal")
            self._db.execute("pragma synchronous=normal")
            self._db.executescript(_TABLES)
            self._add_column("nodes", "dials_out integer not null default 0")
        except (sqlite3.Error, OSError) as error:
            raise FarflungError(f"cannot open {self.path}: {error}") from None
        schema = self.get("schema")
        if schema is None:
            self.put("schema", str(SCHEMA))
        elif schema != str(SCHEMA):
            raise FarflungError(f"{self.path} was written by another version (schema {schema}, this one {SCHEMA})")

    def _add_column(self, table: str, column: str) -> None:
        """A column that a file from before it does not have; the last of the table and of its row."""
        known = {found[1] for found in self._db.execute(f"pragma table_info({table})")}
        if column.split()[0] not in known:
            self._db.execute(f"alter table {table} add column {column}")

    def close(self) -> None:
        """Close the file; calling it twice is fine."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._db.execute("begin immediate")
        try:
            yield self._db
        except BaseException:
            self._db.execute("rollback")
            raise
        self._db.execute("commit")

    def _put_row(self, row: Any) -> None:
        marks = ", ".join("?" * len(fields(row)))
        self._db.execute(f"insert or replace into {_NAMES[type(row)]} values ({marks})", astuple(row))

    def _rows(self, kind: type[Row], rest: str = "", *values: Any) -> list[Row]:
        columns = ", ".join(field.name for field in fields(kind))
        return [kind(*found) for found in self._db.execute(f"select {columns} from {_NAMES[kind]} {rest}", values)]

    # ---- the run's facts ---------------------------------------------------------------------

    def get(self, key: str) -> str | None:
        """A value by name: schema, run, job, facts, term, address, insecure, phase, why, began, bytes, done."""
        found = self._db.execute("select value from meta where key = ?", (key,)).fetchone()
        return found[0] if found else None

    def put(self, key: str, value: str) -> None:
        """Set a value by name."""
        self._db.execute("insert or replace into meta values (?, ?)", (key, value))

    def next_term(self) -> int:
        """One more than the last start's term, stored."""
        term = int(self.get("term") or 0) + 1
        self.put("term", str(term))
        return term

    # ---- nodes and tickets -------------------------------------------------------------------

    def put_node(self, row: NodeRow) -> None:
        """Add a node, or replace what is known of that name."""
        self._put_row(row)

    def node(self, name: str) -> NodeRow | None:
        """What is known of a name."""
        return next(iter(self._rows(NodeRow, "where name = ?", name)), None)

    def nodes(self) -> list[NodeRow]:
        """All nodes, in the order in which they joined."""
        return self._rows(NodeRow, "order by joined, name")

    def node_left(self, name: str, now: float, why: str) -> None:
        """Note that a node is gone."""
        self._db.execute("update nodes set left_at = ?, why = ? where name = ?", (now, why, name))

    def add_ticket(self, ticket: Ticket) -> None:
        """Add a ticket."""
        self._put_row(ticket)

    def ticket(self, number: str) -> Ticket | None:
        """A ticket by id."""
        return next(iter(self._rows(Ticket, "where number = ?", number)), None)

    def tickets(self) -> list[Ticket]:
        """All tickets, oldest first."""
        return self._rows(Ticket, "order by created")

    def take_ticket_use(self, number: str) -> bool:
        """Take one use; False when none is left. Atomic between processes."""
        with self._transaction() as db:
            found = db.execute("select uses from tickets where number = ?", (number,)).fetchone()
            if not found or found[0] == 0:
                return False
            if found[0] is not None:
                db.execute("update tickets set uses = uses - 1 where number = ?", (number,))
            return True

    def revoke_ticket(self, number: str) -> bool:
        """Make a ticket invalid; False when there is none of that id."""
        return self._db.execute("update tickets set revoked = 1 where number = ?", (number,)).rowcount > 0

    # ---- views, steps, evaluations, checkpoints ------------------------------------------------

    def put_view(self, row: ViewRow) -> None:
        """Store a view, before anybody is told of it."""
        self._put_row(row)

    def last_view(self) -> ViewRow | None:
        """The newest view."""
        return next(iter(self._rows(ViewRow, "order by number desc limit 1")), None)

    def views(self) -> list[ViewRow]:
        """All views, oldest first."""
        return self._rows(ViewRow, "order by number")

    def put_step(self, row: StepRow) -> None:
        """Store a step; a step trained again replaces what was there."""
        self._put_row(row)

    def steps(self, last: int | None = None) -> list[StepRow]:
        """All steps, or the newest ``last``, in order."""
        if last is None:
            return self._rows(StepRow, "order by step")
        return self._rows(StepRow, "order by step desc limit ?", last)[::-1]

    def forget_after(self, step: int) -> None:
        """The run went back: steps and evaluations after ``step`` did not happen."""
        with self._transaction() as db:
            db.execute("delete from steps where step > ?", (step,))
            db.execute("delete from evals where step > ?", (step,))

    def totals(self) -> dict[str, int]:
        """Sums over all steps: steps, samples, tokens and the byte counters."""
        names = (
            "samples",
            "tokens",
            "bytes_updates",
            "bytes_activations",
            "bytes_other",
            "bytes_dense",
            "bytes_dense_updates",
        )
        sums = ", ".join(f"coalesce(sum({name}), 0)" for name in names)
        found = self._db.execute(f"select count(*), {sums} from steps").fetchone()
        return dict(zip(("steps", *names), found, strict=True))

    def put_eval(self, row: EvalRow) -> None:
        """Store an evaluation."""
        self._put_row(row)

    def evals(self) -> list[EvalRow]:
        """All evaluations in order."""
        return self._rows(EvalRow, "order by step")

    def put_checkpoint(self, row: CheckpointRow) -> None:
        """Note a complete checkpoint."""
        self._put_row(row)

    def checkpoints(self) -> list[CheckpointRow]:
        """Complete checkpoints that are kept, oldest first."""
        return self._rows(CheckpointRow, "order by step")

    def forget_checkpoint(self, step: int) -> None:
        """A checkpoint was removed."""
        self._db.execute("delete from checkpoints where step = ?", (step,))

    # ---- warnings and links --------------------------------------------------------------------

    def add_warning(self, now: float, node: str, message: str) -> None:
        """Note a warning."""
        self._db.execute("insert into warnings (time, node, message) values (?, ?, ?)", (now, node, message))

    def warnings(self, last: int = 20) -> list[tuple[float, str, str]]:
        """The newest warnings, (time, node, message), in order."""
        found = self._db.execute("select time, node, message from warnings order by id desc limit ?", (last,))
        return list(found)[::-1]

    def put_link(self, source: str, target: str, latency_s: float, bandwidth_bps: float, now: float) -> None:
        """Note a measured link."""
        values = (source, target, latency_s, bandwidth_bps, now)
        self._db.execute("insert or replace into links values (?, ?, ?, ?, ?)", values)

    def links(self) -> list[tuple[str, str, float, float]]:
        """Measured links: from, to, seconds one way, bits per second."""
        return list(self._db.execute("select source, target, latency_s, bandwidth_bps from links"))


def redo_list(text: str) -> tuple[int, ...]:
    """The positions to train again, from a row's ``redo``."""
    return tuple(int(position) for position in json.loads(text or "[]"))
