"""What a run remembers: one SQLite file (WAL) in the state folder, readable while the coordinator writes it, or a
PostgreSQL database that coordinators on several machines use.

Every method is one short transaction. The coordinator is the only writer of everything but tickets, which
``farflung coordinator token`` adds from a process of its own. When the disk under the database is full, or another
process holds the file, what was to be written waits in memory, in order (``catch_up``); only a ticket's use does not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ...proto.errors import FarflungError
from .engines.database import Database
from .engines.postgresql import PostgreSQL
from .engines.sqlite import FILE, SQLite
from .rows import CheckpointRow, EvalRow, NodeRow, ScoreRow, SetRow, StepRow, Ticket, ViewRow, WorkRow
from .schema import ADDED, LINK, NAMES, SCHEMA, TABLES, Row, upsert
from .sums import Sums
from .writer import Writer

LOCKED_S = 0.25
"""How long a running coordinator waits for another process that holds the file: its loop stands still."""


class Store:
    """The database of one run. Not thread safe."""

    def __init__(self, place: Path | str, create: bool = False) -> None:
        """Open STATE/run.sqlite, or the database of a postgresql:// address.

        FarflungError when there is no run (unless ``create``) or it cannot be read.
        """
        self.place = place
        self.database = _open(place, create)
        self.writer = Writer(self.database)
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

    @property
    def name(self) -> str:
        """Where it is, for people."""
        return self.database.name

    @property
    def server(self) -> PostgreSQL | None:
        """The database server, when the run is in one; it has the lease."""
        return self.database if isinstance(self.database, PostgreSQL) else None

    @property
    def leads(self) -> bool:
        """Whether this coordinator may give orders: always, unless others use the database too."""
        return self.server is None or self.server.leads

    def close(self) -> None:
        """Close it; calling it twice is fine."""
        self.database.close()

    @property
    def is_behind(self) -> bool:
        """Whether something waits in memory."""
        return bool(self.writer.late)

    @property
    def given_up(self) -> int:
        """Rows for people that were lost: the database took nothing, and memory had no more room."""
        return self.writer.given_up

    def catch_up(self) -> str:
        """Write what had to wait. Why it still cannot be written, empty when nothing waits."""
        return self.writer.catch_up()

    def hurry(self) -> None:
        """From here on a file that another process holds is waited for no longer than an event loop may stand still."""
        if isinstance(self.database, SQLite):
            self.database.wait_at_most(LOCKED_S)

    def _put_row(self, row: Any) -> None:
        self.writer.write(upsert(NAMES[type(row)], row.__dict__))

    def _rows(self, kind: type[Row], rest: str = "", *values: Any) -> list[Row]:
        columns = ", ".join(field.name for field in fields(kind))
        return [kind(*found) for found in self.database.read(f"select {columns} from {NAMES[kind]} {rest}", values)]

    def _in_order(self, kind: type[Row], last: int | None) -> list[Row]:
        if last is None:
            return self._rows(kind, "order by step")
        return self._rows(kind, "order by step desc limit ?", last)[::-1]

    # ---- the run's facts ---------------------------------------------------------------------

    def get(self, key: str) -> str | None:
        """A value by name: schema, run, job, facts, term, address, insecure, phase, why, began, bytes, target ..."""
        found = self.database.read("select value from meta where key = ?", (key,))
        return str(found[0][0]) if found else None

    def put(self, key: str, value: str) -> None:
        """Set a value by name."""
        self.writer.write(upsert("meta", {"key": key, "value": value}))

    def next_term(self) -> int:
        """One more than the last start's term, stored; with a database server it is the lease's."""
        term = self.server.term if self.server else int(self.get("term") or 0) + 1
        self.put("term", str(term))
        self._sums.forget()  # another coordinator may have led meanwhile
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
        self.writer.write((sql, (now, why, name, session)))

    def add_ticket(self, ticket: Ticket) -> None:
        """Add a ticket. NoRoom: whoever has its link needs it now."""
        self.database.write([upsert(NAMES[Ticket], ticket.__dict__)])

    def ticket(self, number: str) -> Ticket | None:
        """A ticket by id."""
        return next(iter(self._rows(Ticket, "where number = ?", number)), None)

    def tickets(self) -> list[Ticket]:
        """All tickets, oldest first."""
        return self._rows(Ticket, "order by created")

    def take_ticket_use(self, number: str) -> bool:
        """Take one use; False when none is left. Atomic between processes."""
        sql = "update tickets set uses = uses - 1 where number = ? and (uses is null or uses > 0)"
        return self.database.write([(sql, (number,))]) > 0

    def revoke_ticket(self, number: str) -> bool:
        """Make a ticket invalid; False when there is none of that id."""
        return self.database.write([("update tickets set revoked = 1 where number = ?", (number,))]) > 0

    # ---- views, steps, evaluations, checkpoints ------------------------------------------------

    def put_work(self, works: Iterable[WorkRow], scores: Iterable[ScoreRow] = ()) -> None:
        """Store what nodes have done, and what judges have said of them, in one transaction."""
        rows = [upsert(NAMES[type(row)], row.__dict__) for row in (*works, *scores)]
        if rows:
            self.writer.write(*rows)

    def works(self) -> list[WorkRow]:
        """What each node has done."""
        return self._rows(WorkRow, "order by node")

    def scores(self) -> list[ScoreRow]:
        """What each judge has said of each node."""
        return self._rows(ScoreRow, "order by node, judge")

    def put_view(self, row: ViewRow) -> None:
        """Store a view, before anybody is told of it. Steps and evaluations after its first did not happen."""
        gone = [(f"delete from {table} where step > ?", (row.step,)) for table in ("steps", "evals", "eval_sets")]
        self._sums.forget()
        self.writer.write(upsert("views", row.__dict__), *gone)

    def last_view(self) -> ViewRow | None:
        """The newest view."""
        return next(iter(self._rows(ViewRow, "order by number desc limit 1")), None)

    def views(self) -> list[ViewRow]:
        """All views, oldest first."""
        return self._rows(ViewRow, "order by number")

    def put_step(self, row: StepRow) -> None:
        """Store a step; a step trained again replaces what was there."""
        with self._sums.adding(row):
            self._put_row(row)
            if self.is_behind:
                self.writer.late_steps.append(row)

    def steps(self, last: int | None = None) -> list[StepRow]:
        """All steps, or the newest ``last``, in order."""
        return self._in_order(StepRow, last)

    def curve(self, points: int) -> list[tuple[int, int, int, float, int, float, int, int]]:
        """All steps as at most about ``points`` rows, each of as many neighbours: last step, how many, how many have a
        loss, and the sums of loss, tokens, seconds, bytes of updates and activations, bytes in fp16."""
        last = self.database.read("select coalesce(max(step), 0) from steps")[0][0]
        width = max(1, -(-int(last) // points))
        rows = self.database.read(
            "select max(step), count(*), count(loss), coalesce(sum(loss), 0), sum(tokens * 1.0), sum(seconds), "
            "sum(bytes_updates * 1.0) + sum(bytes_activations * 1.0), sum(bytes_dense * 1.0) "
            f"from steps group by step / {width} order by 1"
        )
        kinds = (int, int, int, float, int, float, int, int)
        return [tuple(kind(value) for kind, value in zip(kinds, row, strict=True)) for row in rows]  # type: ignore[misc]

    def totals(self) -> dict[str, int]:
        """Sums over all steps: steps, samples, tokens and the byte counters."""
        return self._sums.now(self._begun)

    def _begun(self) -> tuple[int, int] | None:
        """The step that the newest view began after, and the samples that its weights have seen."""
        view = self.last_view()
        return None if view is None else (view.step, view.cursor - len(json.loads(view.redo or "[]")))

    def bytes_until(self, step: int) -> tuple[int, int]:
        """(sent, in fp16) of updates and activations in the first steps, up to this one."""
        query = (
            "select coalesce(sum(bytes_updates * 1.0 + bytes_activations * 1.0), 0), "
            "coalesce(sum(bytes_dense * 1.0), 0) from steps where step <= ?"
        )
        sent, dense = self.database.read(query, (step,))[0] if step > 0 else (0, 0)
        return int(sent), int(dense)

    def put_eval(self, row: EvalRow) -> None:
        """Store an evaluation."""
        self._put_row(row)

    def evals(self, last: int | None = None) -> list[EvalRow]:
        """All evaluations, or the newest ``last``, in order."""
        return self._in_order(EvalRow, last)

    def put_sets(self, rows: Sequence[SetRow]) -> None:
        """Store what an evaluation found of each set."""
        if rows:
            self.writer.write(*(upsert(NAMES[SetRow], row.__dict__) for row in rows))

    def sets(self, step: int) -> list[SetRow]:
        """What the evaluation after a step found of each set, in the order of their names."""
        return self._rows(SetRow, "where step = ? order by name", step)

    def put_checkpoint(self, row: CheckpointRow) -> None:
        """Note a complete checkpoint."""
        self._put_row(row)

    def checkpoints(self) -> list[CheckpointRow]:
        """Complete checkpoints that are kept, oldest first."""
        return self._rows(CheckpointRow, "order by step")

    def forget_checkpoint(self, step: int) -> None:
        """A checkpoint was removed."""
        self.writer.write(("delete from checkpoints where step = ?", (step,)))

    # ---- warnings and links --------------------------------------------------------------------

    def add_warning(self, now: float, node: str, message: str) -> None:
        """Note a warning."""
        self.writer.write(("insert into warnings (time, node, message) values (?, ?, ?)", (now, node, message)))

    def warnings(self, last: int = 20) -> list[tuple[float, str, str]]:
        """The newest warnings, (time, node, message), in order."""
        found = self.database.read("select time, node, message from warnings order by id desc limit ?", (last,))
        return [(when, node, message) for when, node, message in found[::-1]]

    def put_link(self, source: str, target: str, latency_s: float, bandwidth_bps: float, now: float) -> None:
        """Note a measured link."""
        values = (source, target, latency_s, bandwidth_bps, now)
        self.writer.write(upsert("links", dict(zip(LINK, values, strict=True))))

    def put_links(self, found: Mapping[tuple[str, str], tuple[float, float]], now: float) -> None:
        """Note measured links, (source, target) -> (seconds one way, bits per second), together."""
        rows = [(*pair, *numbers, now) for pair, numbers in found.items()]
        if rows:
            self.writer.write(*(upsert("links", dict(zip(LINK, row, strict=True))) for row in rows))

    def forget_links(self, name: str) -> None:
        """What was measured of a node's links does not count any more."""
        self.writer.write(("delete from links where source = ? or target = ?", (name, name)))

    def links(self) -> list[tuple[str, str, float, float]]:
        """Measured links: from, to, seconds one way, bits per second."""
        found = self.database.read("select source, target, latency_s, bandwidth_bps from links")
        return [(source, target, latency, rate) for source, target, latency, rate in found]

    def ages_of_links(self, now: float) -> dict[tuple[str, str], float]:
        """Seconds since each link was measured; ``now`` as of ``put_link``."""
        found = self.database.read("select source, target, time from links")
        return {(source, target): max(0.0, now - float(when)) for source, target, when in found}


def is_server(place: Path | str) -> bool:
    """Whether a place is the address of a database server, not a state folder."""
    return str(place).startswith(("postgresql://", "postgres://"))


def _open(place: Path | str, create: bool) -> Database:
    if is_server(place):
        return PostgreSQL(str(place), TABLES if create else "")
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
    return SQLite(path, TABLES, ADDED)
