"""Hostile words in a database, and a PostgreSQL server that refuses, is full, dies or freezes in the middle."""

import contextlib
import os
import signal
import socket
import threading
import time

import pytest

from farflung.coordinator.store import late
from farflung.coordinator.store.engines import postgresql
from farflung.coordinator.store.engines.database import LeaseLost, NoRoom
from farflung.coordinator.store.engines.server_address import hidden
from farflung.coordinator.store.engines.watchdog import Watchdog
from farflung.coordinator.store.rows import NodeRow, StepRow
from farflung.coordinator.store.store import Store
from farflung.proto.errors import FarflungError

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'farflung[postgres]'")

NASTY = ["NUL \0 in it", "half \ud800 a pair", "'); drop table nodes; --", "%s %(x)s ? $1 {}", "x" * (1 << 20), "\x1b"]
COUNTERS = {f"bytes_{name}": 1 for name in ("updates", "activations", "other", "dense", "dense_updates")}


def step(number):
    return StepRow(number, 1, 2.5, 8, 128, 0.25, **COUNTERS, notes="", time=1.5)


@pytest.fixture
def place(postgres):
    """The database of a user who may be forbidden things."""
    url = postgres.new_database()
    schema = url.rpartition("search_path%3D")[2]
    with psycopg.connect(postgres.url(), autocommit=True) as db:
        if not db.execute("select 1 from pg_roles where rolname = 'limited'").fetchone():
            db.execute("create role limited login")
        db.execute(f"grant all on schema {schema} to limited")
    return url.replace("farflung@", "limited@")


@pytest.fixture
def store(place):
    with contextlib.closing(Store(place, create=True)) as made:
        made.server.take_lease("one")
        yield made


@pytest.fixture
def admin(place):
    with psycopg.connect(place.replace("limited@", "farflung@"), autocommit=True) as db:
        yield db


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_words_are_only_words(kind, tmp_path, request):
    place = tmp_path if kind == "sqlite" else request.getfixturevalue("place")
    with contextlib.closing(Store(place, create=True)) as store:
        for number, text in enumerate(NASTY):
            store.nodes.put(NodeRow(f"n-{number}", text, text, text, text, "{}", joined=number, why=text))
            store.warnings.add(1.5, text, text)
            store.put(f"key-{number}", text)
            assert store.nodes.named(text) is None and not store.tickets.take_use(text)
        assert [row.name for row in store.nodes.all()] == [f"n-{number}" for number in range(len(NASTY))]
        assert [message[:4] for _, _, message in store.warnings.newest()] == [text[:4] for text in NASTY]
        assert store.get("key-4") == NASTY[4] and store.get("key-1") == "half ? a pair"


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_stores_all_characters_or_is_refused(postgres, encoding):
    with psycopg.connect(postgres.url(), autocommit=True) as db:
        words = "template template0 lc_collate 'C' lc_ctype 'C'"
        db.execute(f"create database {encoding.lower()} encoding '{encoding}' {words}")
    place = postgres.url().replace("/postgres?", f"/{encoding.lower()}?")
    if encoding == "LATIN1":
        with pytest.raises(FarflungError, match="has the encoding LATIN1") as caught:
            Store(place, create=True)
        assert "createdb --encoding UTF8" in caught.value.hint
        return
    with contextlib.closing(Store(place, create=True)) as store:
        store.put("key", "é 日本 \0")
        assert store.get("key") == "é 日本 \N{REPLACEMENT CHARACTER}"


def test_permission_that_is_lost_is_waited_for(store, admin):
    admin.execute("revoke insert, update on steps from limited")
    for number in (1, 2):
        store.steps.put(step(number))
    store.put("who", "one")
    assert store.is_behind and "permission denied for table steps" in store.catch_up() and store.leads
    admin.execute("grant insert, update on steps to limited")
    assert store.catch_up() == "" and [row.step for row in store.steps.all()] == [1, 2] and store.get("who") == "one"


def test_the_lease_alone_may_not_be_renewed(store, admin):
    admin.execute("revoke update on lease from limited")
    store.server.renew_lease()
    assert store.leads, "what is left of it counts"
    store.server._until = 0.0
    with pytest.raises(LeaseLost, match="permission denied"):
        store.server.renew_lease()


@pytest.mark.parametrize("code", ["53100", "53200", "53400", "40001", "40P01", "55P03", "57014"])
def test_what_passes_is_waited_for(store, admin, code):
    """No disk, no memory, a quota, a deadlock, a lock, a person who cancels: with the server's own code."""
    body = f"begin raise 'not now' using errcode = '{code}'; end"
    admin.execute(f"create function no() returns trigger language plpgsql as $$ {body} $$")
    admin.execute("create trigger no before insert on steps for each row execute function no()")
    store.steps.put(step(1))
    assert store.is_behind and "not now" in store.catch_up()
    admin.execute("drop trigger no on steps")
    assert store.catch_up() == "" and [row.step for row in store.steps.all()] == [1]


def test_a_statement_that_never_works_is_no_reason_to_wait(store, admin):
    admin.execute("drop table links")
    with pytest.raises(psycopg.Error):
        store.links.put("a", "b", 0.1, 1e6, 1.5)
    store.put("who", "one")
    assert not store.is_behind and store.get("who") == "one"


def test_a_session_that_is_killed_in_the_middle_of_a_transaction(store, admin, monkeypatch):
    """It waits for a lock when its server process is ended: the transaction is done once, on another connection."""
    monkeypatch.setattr(postgresql, "PATIENCE_S", 60.0)
    old = store.server._connection.info.backend_pid
    store.warnings.add(1.0, "a", "before")
    with admin.transaction():
        admin.execute("lock table warnings in access exclusive mode")
        writing = threading.Thread(target=store.warnings.add, args=(2.0, "a", "in the middle"))
        writing.start()
        waiting = "select count(*) from pg_locks where pid = %s and not granted"
        while not admin.execute(waiting, (old,)).fetchone()[0]:
            time.sleep(0.02)
        admin.execute("select pg_terminate_backend(%s)", (old,))
    writing.join(60)
    assert [message for _, _, message in store.warnings.newest()] == ["before", "in the middle"] and store.leads
    assert store.server._connection.info.backend_pid != old


@pytest.mark.parametrize("whole", [False, True], ids=["one session", "the server"])
def test_a_server_that_is_frozen_stops_nobody_for_long(store, postgres, monkeypatch, whole):
    """SIGSTOP: the kernel acknowledges, and nothing answers."""
    monkeypatch.setattr(postgresql, "PATIENCE_S", 0.2)
    store.server._watch.most_s = 0.5
    frozen = [store.server._connection.info.backend_pid] + [postgres._process.pid] * whole
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(LeaseLost, match="is away"):
            store.put("who", "one")
        assert not store.leads
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    monkeypatch.setattr(postgresql, "PATIENCE_S", 60.0)
    store.server._watch.most_s = 60.0
    assert store.get("schema") == "1", "on another connection"


def test_a_watched_wait_ends_only_its_own_connection():
    watch, (one, two), (three, four) = Watchdog(0.2), socket.socketpair(), socket.socketpair()
    with watch.over(one):
        assert one.recv(1) == b"", "it was shut down"
    with watch.over(three):
        pass
    with contextlib.closing(watch), pytest.raises(BlockingIOError):
        three.setblocking(False)
        three.recv(1)
    for each in (one, two, three, four):
        each.close()


# ---- what waits in memory ---------------------------------------------------------------------


def test_what_waits_for_a_full_database_is_bounded_and_what_matters_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(late, "MOST", 200)
    monkeypatch.setattr(late, "ROOM", 20)
    with contextlib.closing(Store(tmp_path, create=True)) as store:
        usual = store.database.write

        def full(statements):
            raise NoRoom("database or disk is full")

        monkeypatch.setattr(store.database, "write", full)
        for number in range(1, 1001):
            store.put("phase", f"training {number}")
            store.steps.put(step(number))
            if number % 100 == 0:
                store.nodes.put(NodeRow(f"n-{number}", "s", "h", "k", "x:1", "{}", joined=number))
        assert len(store.writer.late) <= 200 and store.given_up
        monkeypatch.setattr(store.database, "write", usual)
        store.writer.locked_until = 0.0
        assert store.catch_up() == ""
        steps = [row.step for row in store.steps.all()]
        assert steps == list(range(1001 - len(steps), 1001)) and len(steps) > 100
        assert store.get("phase") == "training 1000" and len(store.nodes.all()) == 10
        assert store.given_up == 1000 - len(steps)


# ---- the address ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://alice:hunter2@127.0.0.1:1/run",
        "postgresql://alice:hunter2@nowhere.invalid/run",
        "postgresql://alice@127.0.0.1:1/run?password=hunter2",
        "postgresql://alice:hunter2@127.0.0.1:nonsense/run",
        "postgresql://alice:hunter2@127.0.0.1:1/run?nonsense=1",
        "postgresql://alice:%hunter2@127.0.0.1:1/run",
        "postgresql://alice:hunter2@x@127.0.0.1:1/run",
        "postgresql://alice:x@hunter2@127.0.0.1:1/run",
        "postgresql://alice:x/hunter2@127.0.0.1:1/run",
        "postgresql://alice:hunter2/x@127.0.0.1:1/run",
        "postgresql://alice:hunter2?x@127.0.0.1:1/run",
        "postgresql://alice:x?hunter2@127.0.0.1:1/run",
        "postgresql://alice:x#hunter2@127.0.0.1:1/run",
        "postgresql://alice:hunter2%zz@127.0.0.1:1/run",
    ],
)
def test_no_mistake_in_an_address_shows_its_password(url, caplog, capfd):
    with pytest.raises(FarflungError) as found:
        Store(url, create=True)
    shown = [found.value.message, found.value.hint, str(found.value.__cause__), caplog.text, *capfd.readouterr()]
    assert not [text for text in shown if "hunter2" in text]


def test_a_password_is_hidden_in_either_form():
    url = "postgresql://alice:p%40ss%2F@db/run?sslpassword=other"
    assert hidden("p%40ss%2F and p@ss/ and other", url) == "*** and *** and ***"
