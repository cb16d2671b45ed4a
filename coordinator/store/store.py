"""What a run remembers: one SQLite file (WAL) in the state folder, readable while the coordinator writes it, or a
PostgreSQL database that coordinators on several machines use.

Every method is one short transaction. The coordinator is the only writer of everything but tickets, which
``farflung coordinator token`` adds from a process of its own. When the disk under the database is full, or another
process holds the file, what was to be written waits in memory, in order (``catch_up``); only a ticket's use does not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from ...proto.errors import FarflungError
from . import late
from .database import FILE, Database, Locked, NoRoom, PostgreSQL, SQLite, Statement

SCHEMA = 1
LOCKED_S = 0.25
"""How long a running coordinator waits for another process that holds the file: its loop stands still."""
LOCKED_AGAIN_S = 1.0
_MANY = 100
"""Statements that wait, from which on a full database is tried no more often than a locked one."""

_TABLES = """
create table if not exists meta (key text primary key, value text not null);
create table if not exists nodes (
    name text primary key, session text, secret_hash text, key_hash text, address text, device text,
    joined real, left_at real, why text, dials_out integer not null default 0,
    ticket text not null default '');
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
create table if not exists scores (
    node text, judge text, count integer, own real, held real, score real, time real, primary key (node, judge));
create table if not exists work (node text primary key, samples integer, steps integer, time real);
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
    ticket: str = ""
    """The number of the one that it joined with."""


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

    @property
    def hit_rate(self) -> float | None:
        """The part of AQ-SGD's samples that went as a change, the mean over its links; None where no link has it.

        Notes are as the nodes wrote them: what is no such part does not count.
        """
        notes = json.loads(self.notes or "{}").values()
        said = [note.get("aqsgd_hit_rate") for note in notes if isinstance(note, dict)]
        rates = [float(rate) for rate in said if isinstance(rate, (int, float)) and 0 <= rate <= 1]
        return sum(rates) / len(rates) if rates else None


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


@dataclass(frozen=True)
class WorkRow:
    """What a node has taken part in: steps, and the samples of them that the plans gave its pipelines."""

    node: str
    samples: int
    steps: int
    time: float


@dataclass(frozen=True)
class ScoreRow:
    """What one judge has said of one node, summed over ``count`` contributions."""

    node: str
    judge: str
    count: int
    own: float
    held: float
    score: float
    time: float


_ADDED = [("nodes", "dials_out integer not null default 0"), ("nodes", "ticket text not null default ''")]
"""Columns that older files lack; the last of their table and of its row."""
Row = TypeVar("Row", NodeRow, Ticket, ViewRow, StepRow, EvalRow, CheckpointRow, WorkRow, ScoreRow)
_NAMES: dict[type, str] = {
    NodeRow: "nodes",
    Ticket: "tickets",
    ViewRow: "views",
    StepRow: "steps",
    EvalRow: "evals",
    CheckpointRow: "checkpoints",
    WorkRow: "work",
    ScoreRow: "scores",
}


_KEYS: dict[str, tuple[str, ...]] = {
    "meta": ("key",),
    "nodes": ("name",),
    "tickets": ("number",),
    "views": ("number",),
    "steps": ("step",),
}
_KEYS |= {"work": ("node",), "scores": ("node", "judge")}
_KEYS |= {"evals": ("step",), "checkpoints": ("step",), "links": ("source", "target")}
_SUMMED = (
    "samples",
    "tokens",
    "bytes_updates",
    "bytes_activations",
    "bytes_other",
    "bytes_dense",
    "bytes_dense_updates",
)
_LINK = ("source", "target", "latency_s", "bandwidth_bps", "time")


class Store:
    """The database of one run. Not thread safe."""

    def __init__(self, place: Path | str, create: bool = False) -> None:
        """Open STATE/run.sqlite, or the database of a postgresql:// address.

        FarflungError when there is no run (unless ``create``) or it cannot be read.
        """
        self.place = place
        self._late: list[Statement] = []
        self._late_steps: list[StepRow] = []
        """Those among them."""
        self.given_up = 0
        """Rows for people that a database took for so long no more of that there was no room for them in memory."""
        self._locked, self._locked_until = "", 0.0
        """Why nothing is tried until then."""
        self._totals: tuple[int, dict[str, int]] | None = None
        """The last step, and ``totals`` up to there, once they were asked for."""
        self._database = _open(place, create)
        try:
            schema = self.get("schema")
            if schema is None:
                self.put("schema", str(SCHEMA))
            elif schema != str(SCHEMA):
                raise FarflungError(f"{self.name} was written by another version (schema {schema}, this one {SCHEMA})")
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """Where it is, for people."""
        return self._database.name

    @property
    def server(self) -> PostgreSQL | None:
        """The database server, when the run is in one; it has the lease."""
        return self._database if isinstance(self._database, PostgreSQL) else None

    @property
    def leads(self) -> bool:
        """Whether this coordinator may give orders: always, unless others use the database too."""
        return self.server is None or self.server.leads

    def close(self) -> None:
        """Close it; calling it twice is fine."""
        self._database.close()

    @property
    def is_behind(self) -> bool:
        """Whether something waits in memory."""
        return bool(self._late)

    def catch_up(self) -> str:
        """Write what had to wait. Why it still cannot be written, empty when nothing waits."""
        try:
            if self._late:
                if time.monotonic() < self._locked_until:
                    return self._locked
                self._database.write(self._late)
                self._late, self._late_steps = [], []
        except NoRoom as error:
            self._note(error)
            return error.message
        return ""

    def hurry(self) -> None:
        """From here on a file that another process holds is waited for no longer than an event loop may stand still."""
        if isinstance(self._database, SQLite):
            self._database.wait_at_most(LOCKED_S)

    def _write(self, *statements: Statement) -> None:
        try:
            if not (self._late and time.monotonic() < self._locked_until):
                self._database.write([*self._late, *statements])
                self._late, self._late_steps = [], []
                return
        except NoRoom as error:
            self._note(error)
        self._late += statements
        if len(self._late) > late.MOST:
            self._late, gone = late.fitting(self._late, _KEYS)
            self.given_up += gone
            del self._late_steps[: -late.MOST]

    def _note(self, error: NoRoom) -> None:
        if isinstance(error, Locked) or len(self._late) > _MANY:  # all of it is sent with each try
            self._locked, self._locked_until = error.message, time.monotonic() + LOCKED_AGAIN_S

    def _upsert(self, table: str, row: dict[str, Any]) -> Statement:
        keys = _KEYS[table]
        rest = ", ".join(f"{name} = excluded.{name}" for name in row if name not in keys)
        marks = ", ".join("?" * len(row))
        conflict = f"on conflict ({', '.join(keys)}) do update set {rest}"
        sql = f"insert into {table} ({', '.join(row)}) values ({marks}) {conflict}"
        values = [int(value) if isinstance(value, bool) else value for value in row.values()]
        return sql, values

    def _put_row(self, row: Any) -> None:
        self._write(self._upsert(_NAMES[type(row)], row.__dict__))

    def _rows(self, kind: type[Row], rest: str = "", *values: Any) -> list[Row]:
        columns = ", ".join(field.name for field in fields(kind))
        return [kind(*found) for found in self._database.read(f"select {columns} from {_NAMES[kind]} {rest}", values)]

    def _in_order(self, kind: type[Row], last: int | None) -> list[Row]:
        if last is None:
            return self._rows(kind, "order by step")
        return self._rows(kind, "order by step desc limit ?", last)[::-1]

    # ---- the run's facts ---------------------------------------------------------------------

    def get(self, key: str) -> str | None:
        """A value by name: schema, run, job, facts, term, address, insecure, phase, why, began, bytes, target ..."""
        found = self._database.read("select value from meta where key = ?", (key,))
        return str(found[0][0]) if found else None

    def put(self, key: str, value: str) -> None:
        """Set a value by name."""
        self._write(self._upsert("meta", {"key": key, "value": value}))

    def next_term(self) -> int:
        """One more than the last start's term, stored; with a database server it is the lease's."""
        term = self.server.term if self.server else int(self.get("term") or 0) + 1
        self.put("term", str(term))
        self._totals = None  # another coordinator may have led meanwhile
        if why := self.catch_up():
            raise FarflungError(why, "make room, then start again")
        return term

    # ---- nodes and tickets -------------------------------------------------------------------

    def put_node(self, row: NodeRow) -> None:
        """Add a node, or replace what is known of that name."""
        self._put_row(row)

    def node(self, name: str) -> NodeRow | None:
        """What is known of a name."""
        return next(iter(self._rows(NodeRow, "where name = ?", name)), None)

    def node_called(self, name: str) -> NodeRow | None:
        """What is known of a name, whatever its case; of several, as older versions had them, of that very one."""
        rows = self._rows(NodeRow, "where lower(name) = ? order by joined", name.lower())
        return next((row for row in rows if row.name == name), next(iter(rows), None))

    def nodes(self) -> list[NodeRow]:
        """All nodes, in the order in which they joined."""
        return self._rows(NodeRow, "order by joined, name")

    def node_left(self, name: str, session: str, now: float, why: str) -> None:
        """Note that a session of a node is gone; a later one of that name is not."""
        sql = "update nodes set left_at = ?, why = ? where name = ? and session = ?"
        self._write((sql, (now, why, name, session)))

    def add_ticket(self, ticket: Ticket) -> None:
        """Add a ticket. NoRoom: whoever has its link needs it now."""
        self._database.write([self._upsert(_NAMES[Ticket], ticket.__dict__)])

    def ticket(self, number: str) -> Ticket | None:
        """A ticket by id."""
        return next(iter(self._rows(Ticket, "where number = ?", number)), None)

    def tickets(self) -> list[Ticket]:
        """All tickets, oldest first."""
        return self._rows(Ticket, "order by created")

    def take_ticket_use(self, number: str) -> bool:
        """Take one use; False when none is left. Atomic between processes."""
        sql = "update tickets set uses = uses - 1 where number = ? and (uses is null or uses > 0)"
        return self._database.write([(sql, (number,))]) > 0

    def revoke_ticket(self, number: str) -> bool:
        """Make a ticket invalid; False when there is none of that id."""
        return self._database.write([("update tickets set revoked = 1 where number = ?", (number,))]) > 0

    # ---- views, steps, evaluations, checkpoints ------------------------------------------------

    def put_work(self, works: Iterable[WorkRow], scores: Iterable[ScoreRow] = ()) -> None:
        """Store what nodes have done, and what judges have said of them, in one transaction."""
        rows = [self._upsert(_NAMES[type(row)], row.__dict__) for row in (*works, *scores)]
        if rows:
            self._write(*rows)

    def works(self) -> list[WorkRow]:
        """What each node has done."""
        return self._rows(WorkRow, "order by node")

    def scores(self) -> list[ScoreRow]:
        """What each judge has said of each node."""
        return self._rows(ScoreRow, "order by node, judge")

    def put_view(self, row: ViewRow) -> None:
        """Store a view, before anybody is told of it. Steps and evaluations after its first did not happen."""
        gone = [(f"delete from {table} where step > ?", (row.step,)) for table in ("steps", "evals")]
        self._totals = None
        self._write(self._upsert("views", row.__dict__), *gone)

    def last_view(self) -> ViewRow | None:
        """The newest view."""
        return next(iter(self._rows(ViewRow, "order by number desc limit 1")), None)

    def views(self) -> list[ViewRow]:
        """All views, oldest first."""
        return self._rows(ViewRow, "order by number")

    def put_step(self, row: StepRow) -> None:
        """Store a step; a step trained again replaces what was there."""
        known, self._totals = self._totals, None
        self._put_row(row)
        if self.is_behind:
            self._late_steps.append(row)
        if known is not None and row.step > known[0]:
            sums = {name: known[1][name] + getattr(row, name) for name in _SUMMED}
            self._totals = row.step, {"steps": known[1]["steps"] + 1, **sums}

    def steps(self, last: int | None = None) -> list[StepRow]:
        """All steps, or the newest ``last``, in order."""
        return self._in_order(StepRow, last)

    def curve(self, points: int) -> list[tuple[int, int, int, float, int, float, int, int]]:
        """All steps as at most about ``points`` rows, each of as many neighbours: last step, how many, how many have a
        loss, and the sums of loss, tokens, seconds, bytes of updates and activations, bytes in fp16."""
        last = self._database.read("select coalesce(max(step), 0) from steps")[0][0]
        width = max(1, -(-int(last) // points))
        rows = self._database.read(
            "select max(step), count(*), count(loss), coalesce(sum(loss), 0), sum(tokens * 1.0), sum(seconds), "
            "sum(bytes_updates * 1.0) + sum(bytes_activations * 1.0), sum(bytes_dense * 1.0) "
            f"from steps group by step / {width} order by 1"
        )
        kinds = (int, int, int, float, int, float, int, int)
        return [tuple(kind(value) for kind, value in zip(kinds, row, strict=True)) for row in rows]  # type: ignore[misc]

    def totals(self) -> dict[str, int]:
        """Sums over all steps: steps, samples, tokens and the byte counters. The rows are read once; steps that are
        stored after that are added. Samples count once: those that the newest view begins with, and its steps'."""
        if self._totals is None:
            sums = ", ".join(f"coalesce(sum({name} * 1.0), 0)" for name in _SUMMED)  # whole numbers would overflow
            last, *found = self._database.read(f"select coalesce(max(step), 0), count(*), {sums} from steps")[0]
            totals = dict(zip(("steps", *_SUMMED), map(int, found), strict=True))
            if view := self.last_view():  # steps before a checkpoint have samples that are not in it, and trained again
                query = "select coalesce(sum(samples * 1.0), 0) from steps where step > ?"
                since = int(self._database.read(query, (view.step,))[0][0])
                totals["samples"] = view.cursor - len(json.loads(view.redo or "[]")) + since
            if self.is_behind:
                for row in self._late_steps:
                    if row.step > last:
                        totals["steps"] += 1
                        totals.update({name: totals[name] + getattr(row, name) for name in _SUMMED})
                return totals
            self._totals = int(last), totals
        return dict(self._totals[1])

    def bytes_until(self, step: int) -> tuple[int, int]:
        """(sent, in fp16) of updates and activations in the first steps, up to this one."""
        query = (
            "select coalesce(sum(bytes_updates * 1.0 + bytes_activations * 1.0), 0), "
            "coalesce(sum(bytes_dense * 1.0), 0) from steps where step <= ?"
        )
        sent, dense = self._database.read(query, (step,))[0] if step > 0 else (0, 0)
        return int(sent), int(dense)

    def put_eval(self, row: EvalRow) -> None:
        """Store an evaluation."""
        self._put_row(row)

    def evals(self, last: int | None = None) -> list[EvalRow]:
        """All evaluations, or the newest ``last``, in order."""
        return self._in_order(EvalRow, last)

    def put_checkpoint(self, row: CheckpointRow) -> None:
        """Note a complete checkpoint."""
        self._put_row(row)

    def checkpoints(self) -> list[CheckpointRow]:
        """Complete checkpoints that are kept, oldest first."""
        return self._rows(CheckpointRow, "order by step")

    def forget_checkpoint(self, step: int) -> None:
        """A checkpoint was removed."""
        self._write(("delete from checkpoints where step = ?", (step,)))

    # ---- warnings and links --------------------------------------------------------------------

    def add_warning(self, now: float, node: str, message: str) -> None:
        """Note a warning."""
        self._write(("insert into warnings (time, node, message) values (?, ?, ?)", (now, node, message)))

    def warnings(self, last: int = 20) -> list[tuple[float, str, str]]:
        """The newest warnings, (time, node, message), in order."""
        found = self._database.read("select time, node, message from warnings order by id desc limit ?", (last,))
        return [(when, node, message) for when, node, message in found[::-1]]

    def put_link(self, source: str, target: str, latency_s: float, bandwidth_bps: float, now: float) -> None:
        """Note a measured link."""
        values = (source, target, latency_s, bandwidth_bps, now)
        self._write(self._upsert("links", dict(zip(_LINK, values, strict=True))))

    def put_links(self, found: Mapping[tuple[str, str], tuple[float, float]], now: float) -> None:
        """Note measured links, (source, target) -> (seconds one way, bits per second), together."""
        rows = [(*pair, *numbers, now) for pair, numbers in found.items()]
        if rows:
            self._write(*(self._upsert("links", dict(zip(_LINK, row, strict=True))) for row in rows))

    def forget_links(self, name: str) -> None:
        """What was measured of a node's links does not count any more."""
        self._write(("delete from links where source = ? or target = ?", (name, name)))

    def links(self) -> list[tuple[str, str, float, float]]:
        """Measured links: from, to, seconds one way, bits per second."""
        found = self._database.read("select source, target, latency_s, bandwidth_bps from links")
        return [(source, target, latency, rate) for source, target, latency, rate in found]


def is_server(place: Path | str) -> bool:
    """Whether a place is the address of a database server, not a state folder."""
    return str(place).startswith(("postgresql://", "postgres://"))


def _open(place: Path | str, create: bool) -> Database:
    if is_server(place):
        return PostgreSQL(str(place), _TABLES if create else "")
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
    return SQLite(path, _TABLES, _ADDED)
