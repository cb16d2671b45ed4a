"""The store, the same in SQLite and in a real PostgreSQL server."""

import asyncio
import contextlib
import sqlite3
import time

import pytest

from farflung.coordinator.serve.lease import stand_by
from farflung.coordinator.store.engines.database import LeaseLost, NoRoom
from farflung.coordinator.store.rows import CheckpointRow, EvalRow, NodeRow, StepRow, Ticket, ViewRow
from farflung.coordinator.store.store import Store
from farflung.proto.errors import FarflungError


def step(number, **changes):
    fields = {"step": number, "view": 1, "loss": 2.5, "samples": 8, "tokens": 128, "seconds": 0.25}
    counters = dict.fromkeys(("updates", "activations", "other", "dense", "dense_updates"), 2**40)
    fields |= {f"bytes_{name}": value for name, value in counters.items()} | {"notes": "", "time": 1764288000.123456}
    return StepRow(**{**fields, **changes})


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    """Where an empty database is."""
    if request.param == "sqlite":
        return tmp_path / "state"
    return request.getfixturevalue("postgres").new_database()


@pytest.fixture
def store(place):
    with contextlib.closing(Store(place, create=True)) as made:
        yield made


def test_facts_and_what_another_process_sees(store, place):
    assert store.get("job") is None
    store.put("job", "{}")
    store.put("job", '{"a": 1}')
    with contextlib.closing(Store(place)) as other:
        assert other.get("job") == '{"a": 1}' and other.get("schema") == "1"


def test_nodes(store):
    device = '{"kind": "cpu"}'
    store.nodes.put(NodeRow("b", "s1", "h", "k", "10.0.0.1:1", device, joined=2.5, dials_out=True))
    store.nodes.put(NodeRow("a", "s1", "h", "k", "10.0.0.1:1", device, joined=2.5))
    store.nodes.left("a", "s1", 3.5, "stopped, with a NUL\0in the reason")
    store.nodes.put(NodeRow("b", "s2", "h", "k", "10.0.0.1:1", device, joined=1.0, dials_out=True))
    assert [(row.name, row.session, bool(row.dials_out)) for row in store.nodes.all()] == [
        ("b", "s2", True),
        ("a", "s1", False),
    ]
    assert store.nodes.named("a").left_at == 3.5 and store.nodes.named("a").why.startswith("stopped, with")
    assert store.nodes.named("b").left_at is None and store.nodes.named("c") is None


def test_tickets(store):
    store.tickets.add(Ticket("n2", "h", 2.0, None, None, False))
    store.tickets.add(Ticket("n1", "h", 1.0, 1764288000.5, 2, False))
    assert [store.tickets.take_use("n1") for _ in range(3)] == [True, True, False]
    assert all(store.tickets.take_use("n2") for _ in range(3)) and not store.tickets.take_use("n3")
    assert store.tickets.revoke("n1") and not store.tickets.revoke("n3")
    first, second = store.tickets.all()
    assert first == Ticket("n1", "h", 1.0, 1764288000.5, 0, 1) and second.uses is None and not second.revoked


def test_views_and_steps(store):
    for number in (1, 2, 3):
        store.views.put(ViewRow(number, "{}", "[]", number, number * 8, "[]", checkpoint=-1, why="why", time=1.5))
    assert store.views.last().number == 3 and [row.cursor for row in store.views.all()] == [8, 16, 24]
    for number in range(1, 8):
        store.steps.put(step(number))
    store.steps.put(step(7, loss=None, samples=16))
    assert [row.step for row in store.steps.newest(2)] == [6, 7] and store.steps.all()[0] == step(1)
    assert store.steps.totals()["steps"] == 7 and store.steps.totals()["samples"] == 64
    assert store.steps.totals()["bytes_dense"] == 7 * 2**40
    curve = store.steps.curve(4)  # two neighbours a point, by step // 2
    assert [row[:3] for row in curve] == [(1, 1, 1), (3, 2, 2), (5, 2, 2), (7, 2, 1)]
    assert curve[1][7] == 2 * 2**40 and all(isinstance(value, (int, float)) for row in curve for value in row)
    store.views.put(
        ViewRow(
            4,
            "{}",
            "[]",
            7,
            56,
            "[40, 41]",
            checkpoint=7,
            why="back to a checkpoint without two samples",
            time=1.5,
        )
    )
    assert store.steps.totals()["samples"] == 54, "they are trained, and counted, again"
    store.evals.put(EvalRow(2, 2.5, 10, None, 1.0))
    store.evals.put(EvalRow(6, 2.0, 10, 0.5, 1.0))
    store.views.put(ViewRow(5, "{}", "[]", 5, 40, "[]", checkpoint=-1, why="back to step 5", time=1.5))
    assert store.steps.totals()["steps"] == 5 and store.evals.all() == [EvalRow(2, 2.5, 10, None, 1.0)]


def test_sums_go_on_with_every_step_that_is_stored(store, place, monkeypatch):
    """As they are in the database, whatever is stored, without reading all of it again."""
    back = ViewRow(2, "{}", "[]", 3, 24, "[]", checkpoint=-1, why="back to step 3", time=1.5)
    changes = [
        lambda: [store.steps.put(step(number, bytes_other=number)) for number in range(1, 6)],
        lambda: store.steps.put(step(6, tokens=7)),
        lambda: store.steps.put(step(6, tokens=9)),  # trained again
        lambda: store.steps.put(step(2, samples=1)),
        lambda: store.views.put(back),
        lambda: store.steps.put(step(4, bytes_dense=1)),
    ]
    for change in changes:
        change()
        with contextlib.closing(Store(place)) as other:
            assert store.steps.totals() == other.steps.totals()
    with monkeypatch.context() as patched:
        patched.setattr(store.database, "read", None)
        store.steps.put(step(5))
        assert store.steps.totals()["steps"] == 5 and store.steps.totals()["samples"] == 24 + 2 * 8
    with contextlib.closing(Store(place, create=True)) as other:
        other.steps.put(step(6))  # of another leader
    store.next_term()
    assert store.steps.totals()["steps"] == 6


def test_sums_with_steps_that_waited_for_room(store, place, monkeypatch):
    def full(statements):
        raise NoRoom("cannot write it: the disk is full", "make room")

    def check(steps):
        assert store.catch_up() == ""
        with contextlib.closing(Store(place)) as other:
            assert store.steps.totals() == other.steps.totals() and store.steps.totals()["steps"] == steps

    store.steps.put(step(1))
    check(1)
    with monkeypatch.context() as patch:
        patch.setattr(store.database, "write", full)
        store.steps.put(step(2))
    check(2)
    with monkeypatch.context() as patch:
        patch.setattr(store.database, "write", full)
        store.views.put(ViewRow(2, "{}", "[]", 1, 8, "[]", checkpoint=-1, why="back to step 1", time=1.5))
        store.steps.put(step(2, samples=1))
        assert store.steps.totals()["samples"] == 16, "of what is in the database"
        store.steps.put(step(3))
    check(3)


def test_the_newest_evaluations(store):
    store.evals.put(EvalRow(4, 2.5, 10, None, 1.0))
    store.evals.put(EvalRow(5, 2.0, 10, None, 1.0))
    assert store.evals.newest(1) == [EvalRow(5, 2.0, 10, None, 1.0)]


def test_checkpoints_warnings_and_links(store):
    rows = [CheckpointRow(number, f"/x/{number}", number * 8, "[3]", 1.0) for number in (4, 8)]
    for row in reversed(rows):
        store.checkpoints.put(row)
    assert store.checkpoints.all() == rows
    store.checkpoints.forget(4)
    assert store.checkpoints.all() == rows[1:]
    for number in range(5):
        store.warnings.add(float(number), "a", f"warning {number}")
    assert store.warnings.newest(2) == [(3.0, "a", "warning 3"), (4.0, "a", "warning 4")]
    store.links.put("a", "b", 0.5, 1e9, 1.0)
    store.links.put("a", "b", 0.25, 1e9, 2.0)
    assert store.links.all() == [("a", "b", 0.25, 1e9)]


def test_another_schema_is_refused(store, place):
    store.put("schema", "2")
    with pytest.raises(FarflungError, match="another version"):
        Store(place)


def test_a_file_of_before(tmp_path):
    """A database that an earlier version wrote gets the columns that it lacks."""
    with contextlib.closing(sqlite3.connect(tmp_path / "run.sqlite")) as db:
        db.execute(
            "create table nodes (name text primary key, session text, secret_hash text, key_hash text,"
            " address text, device text, joined real, left_at real, why text)"
        )
        db.execute("insert into nodes values ('a', 's', 'h', 'k', 'x:1', '{}', 1.0, null, '')")
        db.commit()
    with contextlib.closing(Store(tmp_path, create=True)) as store:
        assert store.nodes.all() == [NodeRow("a", "s", "h", "k", "x:1", "{}", joined=1.0, dials_out=0)]


def test_there_is_no_run(tmp_path, postgres):
    for place in (tmp_path / "none", postgres.new_database()):
        with pytest.raises(FarflungError, match="there is no run in"):
            Store(place)


# ---- the lease ------------------------------------------------------------------------------


def leading(place, who):
    store = Store(place, create=True)
    return store, store.server


def test_one_leads_and_the_other_stands_by(postgres):
    place = postgres.new_database()
    (first, one), (second, two) = leading(place, "one"), leading(place, "two")
    assert one.take_lease("one") == 1
    assert two.take_lease("two") == 0
    assert two.leader() == "one" and two.standbys() == ["two"]
    one.renew_lease()
    one.check_lease()
    first.put("who", "one")
    one.release_lease()
    assert two.take_lease("two") == 2
    second.put("who", "two")
    assert first.get("who") == "two" and one.leader() == "two"
    first.close()
    second.close()


def test_a_leader_whose_lease_ended_writes_nothing(postgres, monkeypatch):
    monkeypatch.setattr("farflung.coordinator.store.engines.postgresql.LEASE_S", 2.0)
    place = postgres.new_database()
    (first, one), (second, two) = leading(place, "one"), leading(place, "two")
    assert one.take_lease("one") == 1
    first.put("who", "one")
    time.sleep(2.1)
    with pytest.raises(LeaseLost):
        first.put("who", "nobody else has asked, and still")
    with pytest.raises(LeaseLost):
        one.renew_lease()
    monkeypatch.setattr("farflung.coordinator.store.engines.postgresql.LEASE_S", 60.0)
    assert two.take_lease("two") == 2
    with pytest.raises(LeaseLost):
        first.views.put(ViewRow(9, "{}", "[]", 1, 8, "[]", checkpoint=-1, why="of yesterday", time=1.5))
    with pytest.raises(LeaseLost):
        one.check_lease()
    second.put("who", "two")
    assert second.get("who") == "two" and second.views.last() is None
    first.close()
    second.close()


def test_a_transaction_is_one_message(postgres, tmp_path):
    """A process may be frozen between two, and the lease's row would stay locked."""
    with contextlib.closing(Store(postgres.new_database(), create=True)) as store:
        store.server.take_lease("one")
        with (tmp_path / "messages").open("w") as file:
            store.server._connection.pgconn.trace(file.fileno())
            insert = ("insert into meta values (?, ?)", ("é'; --%s", "\\ 'x"))
            count = store.server.write([insert, ("delete from meta where key = ?", ("no",))])
            store.server._connection.pgconn.untrace()
        sent = [line.split("\t") for line in (tmp_path / "messages").read_text().splitlines()]
        assert [words[3] for words in sent if "F" in words[:2]] == ["Query"], sent
        assert count == 0 and store.get("é'; --%s") == "\\ 'x"


def test_a_leader_that_is_frozen_before_its_commit(postgres, monkeypatch):
    """Its transaction keeps the lease's row locked, until the server ends the session; then another leads."""
    monkeypatch.setattr("farflung.coordinator.store.engines.postgresql.LEASE_S", 2.0)
    place = postgres.new_database()
    (first, one), (second, two) = leading(place, "one"), leading(place, "two")
    assert one.take_lease("one") == 1
    one._connection.execute("begin")
    one._connection.execute("select * from lease for share")
    monkeypatch.setattr("farflung.coordinator.store.engines.postgresql.LEASE_S", 60.0)
    while not two.term:  # as a standby asks
        with contextlib.suppress(NoRoom):
            two.take_lease("two")
        time.sleep(0.05)
    assert two.term == 2
    with pytest.raises(LeaseLost):
        first.put("who", "one")
    second.put("who", "two")
    assert first.get("who") == "two"
    first.close()
    second.close()


def test_a_row_that_stays_locked(postgres, monkeypatch):
    """Whoever waits for the lease says so and asks again."""
    monkeypatch.setattr("farflung.coordinator.store.engines.postgresql.LOCK_S", 0.2)
    monkeypatch.setattr("farflung.coordinator.store.engines.postgresql.LEASE_S", 60.0)
    place = postgres.new_database()
    (first, one), (second, two) = leading(place, "one"), leading(place, "two")
    assert one.take_lease("one") == 1
    one._connection.execute("begin")
    one._connection.execute("update lease set expires = clock_timestamp()")
    said, stop = [], asyncio.Event()

    def emit(event):
        said.append(event["message"])
        if one._connection.info.transaction_status:
            one._connection.execute("commit")

    assert asyncio.run(stand_by(two, emit, stop))
    assert "stands by" in said[0] and "lock" in said[0] and "leads the run" in said[-1]
    first.close()
    second.close()


def test_a_server_that_restarts(postgres, monkeypatch):
    """A short absence is waited out; after a long one the coordinator stops leading."""
    store, server = leading(postgres.new_database(), "one")
    server.take_lease("one")
    postgres.stop()
    try:
        monkeypatch.setattr("farflung.coordinator.store.engines.postgresql.PATIENCE_S", 0.3)
        with pytest.raises(LeaseLost, match="is away"):
            store.put("a", "1")
    finally:
        postgres.start()
    monkeypatch.setattr("farflung.coordinator.store.engines.postgresql.PATIENCE_S", 60.0)
    store.put("a", "2")
    assert store.get("a") == "2"
    store.close()


def test_a_database_that_is_not_there(tmp_path):
    with pytest.raises(FarflungError, match="cannot open the database") as caught:
        Store(f"postgresql://x@/postgres?host={tmp_path}", create=True)
    assert "postgresql://USER@HOST:PORT/DATABASE" in caught.value.hint


def test_no_sum_is_too_large(store):
    for number in (1, 2):
        store.steps.put(step(number, bytes_other=2**62))
    assert store.steps.totals()["bytes_other"] == 2**63


def test_another_process_holds_the_file(tmp_path, monkeypatch):
    """What is to be written waits in memory, in order, and the event loop stands still for a moment only, once."""
    with contextlib.closing(Store(tmp_path / "state", create=True)) as store:
        store.hurry()
        holder = sqlite3.connect(tmp_path / "state" / "run.sqlite", isolation_level=None)
        holder.execute("begin immediate")
        began = time.monotonic()
        for number in range(1, 40):
            store.steps.put(step(number))
        assert time.monotonic() - began < 5, "one wait and not forty"
        assert store.is_behind and "is locked" in store.catch_up() and store.steps.all() == []
        assert store.steps.totals()["steps"] == 39, "what waits counts"
        holder.execute("rollback")
        holder.close()
        store.writer.locked_until = 0.0
        assert store.catch_up() == "" and not store.is_behind
        assert [row.step for row in store.steps.all()] == list(range(1, 40))
