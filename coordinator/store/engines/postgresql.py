"""A run's database on a PostgreSQL server, and the lease by which one coordinator of several leads.

The lease is a row that ends by the server's clock. Every write of a leader checks the lease in its own transaction and
locks its row until it has committed, so a leader whose lease has ended writes nothing, however late it notices. A
transaction is one message: a leader that is frozen in the middle of one would keep the row locked, and nobody could
take over.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ....proto.errors import FarflungError
from .database import LeaseLost, NoRoom, Rows, Statement, storable
from .server_address import check, hidden
from .watchdog import Watchdog

if TYPE_CHECKING:
    import psycopg


LEASE_S = 10.0
"""Seconds for which a coordinator leads after a renewal, by the server's clock."""


PATIENCE_S = 3.0
"""Seconds that one statement waits for a server that does not answer, before the coordinator stops leading."""


LOCK_S = 3.0
"""Seconds that a statement waits for a row that another session has locked."""


_RETRY_S = 0.2


_ENCODINGS = ("UTF8", "SQL_ASCII", None)
"""A database's encodings that store any text in UTF-8: SQL_ASCII stores bytes as they come. None: a server between does
not say."""


HANG_S = LEASE_S
"""Seconds that a statement may wait for an answer over an open connection; after that the lease counts as lost."""


_Result = TypeVar("_Result")


class PostgreSQL:
    """A database of a PostgreSQL server, through psycopg. A statement waits up to PATIENCE_S for a server that does not
    answer."""

    shared = True

    def __init__(self, url: str, tables: str) -> None:
        """Connect and make the tables, if any are given.

        FarflungError: psycopg is missing, the server does not answer or refuses, or there is no run and no tables are
        given.
        """
        try:
            import psycopg
        except ImportError:
            hint = "pip install 'farflung[postgres]'"
            raise FarflungError("--database postgresql://... needs the package psycopg", hint) from None
        check(url)
        self._psycopg, self._url = psycopg, url
        self._holder = secrets.token_hex(8)
        self._watch = Watchdog(HANG_S)
        self._busy = threading.RLock()  # a start reads checkpoints' rows in a thread while the lease is renewed
        self.term = 0
        """The lease's term; 0: this coordinator does not lead."""
        self._until = 0.0  # by time.monotonic(); no orders are given after this time
        try:
            self._connection = self._connect()
            info = self._connection.info
            self.name = f"the database {info.dbname} at {info.host}:{info.port}"
            try:
                with self._watch.over(self._connection):
                    self._prepare(tables)
            except BaseException:
                self._connection.close()
                raise
        except psycopg.Error as error:
            hint = "give --database postgresql://USER@HOST:PORT/DATABASE of a running server"
            raise FarflungError(f"cannot open the database: {self._sentence(error)}", hint) from None

    def _prepare(self, tables: str) -> None:
        self._check_encoding()
        with self._connection.transaction():
            self._connection.execute("select pg_advisory_xact_lock(7241)")  # two may start together
            for statement in _postgres_tables(tables) if tables else ():
                self._connection.execute(statement)
            if self._connection.execute("select to_regclass('meta')").fetchone() == (None,):
                raise FarflungError(f"there is no run in {self.name}", "give the --database of its coordinator")

    def _check_encoding(self) -> None:
        """FarflungError: texts of nodes and jobs may have characters that the database cannot store."""
        encoding = self._connection.info.parameter_status("server_encoding")
        if encoding not in _ENCODINGS:
            hint = "make one that stores all characters: createdb --encoding UTF8 --template template0 NAME"
            raise FarflungError(f"{self.name} has the encoding {encoding}", hint)

    # ---- statements --------------------------------------------------------------------------

    def read(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        return self._patiently(lambda db: db.execute(_marks(sql), _clean(values)).fetchall())

    def write(self, statements: Sequence[Statement]) -> int:
        return self._patiently(lambda db: self._write(db, statements))

    def _write(self, db: psycopg.Connection[Any], statements: Sequence[Statement]) -> int:
        if self.term:
            statements = [(_FENCE, (self._holder, self.term)), *statements]
        with self._psycopg.ClientCursor(db) as cursor:
            whole: Any = "; ".join(cursor.mogrify(_marks(sql), _clean(values)) for sql, values in statements)
            try:
                cursor.execute(whole)  # one message, so that the server never waits in it for the next
                while cursor.nextset():
                    pass
                return int(cursor.rowcount)
            except self._psycopg.errors.DivisionByZero:
                self._until = 0.0
                raise LeaseLost(f"another coordinator leads the run in {self.name} now") from None

    def close(self) -> None:
        self._connection.close()
        self._watch.close()

    def _sentence(self, error: Exception) -> str:
        """The first line of the server's or driver's message, without the secrets of the address."""
        return hidden(_sentence(error), self._url)

    # ---- the lease ---------------------------------------------------------------------------

    def take_lease(self, who: str) -> int:
        """The new term if this coordinator leads from now on; 0 while another leads. ``who``: this coordinator's name
        for people."""
        asked = time.monotonic()
        self.term = 0

        def take(db: psycopg.Connection[Any]) -> Rows:
            db.execute(_STAND_BY, (self._holder, who))
            return db.execute(_TAKE, (self._holder, who, LEASE_S)).fetchall()

        found = self._patiently(take)
        if found:
            self.term, self._until = int(found[0][0]), asked + LEASE_S
        return self.term

    def renew_lease(self) -> None:
        """Renew the lease. LeaseLost when it has ended."""
        asked = time.monotonic()
        try:
            if not self._patiently(lambda db: db.execute(_RENEW, (LEASE_S, self._holder, self.term)).rowcount):
                self._until = 0.0
        except NoRoom as error:
            if not self.leads:
                raise LeaseLost(error.message, error.hint) from None
            return  # the rest of the lease may be long enough
        self.check_lease()
        self._until = asked + LEASE_S

    @property
    def leads(self) -> bool:
        """Whether the lease is held by this machine's clock, without asking the server."""
        return time.monotonic() < self._until

    def check_lease(self) -> None:
        """Raise LeaseLost unless the lease is held."""
        if not self.leads:
            raise LeaseLost(f"the lease on the run in {self.name} has ended")

    def release_lease(self) -> None:
        """Let another coordinator lead at once."""
        term, self.term, self._until = self.term, 0, 0.0
        self._patiently(lambda db: db.execute(_RELEASE, (self._holder, term)))

    def leader(self) -> str:
        """The coordinator that leads now, for people; empty: none."""
        found = self.read("select who from lease where expires > clock_timestamp()")
        return str(found[0][0]) if found else ""

    def standbys(self) -> list[str]:
        """The names, for people, of the coordinators that stand by."""
        recent = "seen > clock_timestamp() - interval '5 seconds'"
        mine = "holder not in (select holder from lease where expires > clock_timestamp())"
        return [str(row[0]) for row in self.read(f"select who from standbys where {recent} and {mine} order by who")]

    # ---- the connection ----------------------------------------------------------------------

    def _connect(self) -> psycopg.Connection[Any]:
        # A vanished server must be noticed within seconds, because the coordinator's event loop waits here.
        limits = {"connect_timeout": 3, "keepalives_idle": 2, "keepalives_interval": 1, "keepalives_count": 3}
        said = self._psycopg.conninfo.make_conninfo(self._url, client_encoding="UTF8")
        address = self._psycopg.conninfo.make_conninfo(said, tcp_user_timeout=5000, **limits)
        connection = self._psycopg.connect(address, autocommit=True)
        try:
            with self._watch.over(connection):
                for limit, seconds in (("idle_in_transaction_session_timeout", LEASE_S / 2), ("lock_timeout", LOCK_S)):
                    connection.execute("select set_config(%s, %s, false)", (limit, f"{seconds * 1000:.0f}ms"))
        except BaseException:
            connection.close()
            raise
        return connection

    def _patiently(self, work: Callable[[psycopg.Connection[Any]], _Result]) -> _Result:
        """Do ``work`` on an open connection, again after a lost connection: all statements here may be executed
        twice."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with self._busy:
                    if self._connection.closed:
                        self._connection = self._connect()
                    with self._watch.over(self._connection):
                        return work(self._connection)
            except self._psycopg.Error as error:
                if error.sqlstate == _ENDED:
                    self._connection.close()
                if not self._connection.closed and not self._connection.broken:
                    raise self._for_now(error) from None
                if time.monotonic() > deadline:
                    self._until = 0.0  # the write has failed, so no orders or acknowledgements may follow
                    raise LeaseLost(f"{self.name} is away: {self._sentence(error)}") from None
                time.sleep(_RETRY_S)

    def _for_now(self, error: psycopg.Error) -> Exception:
        """NoRoom where the same may work later, else the error itself."""
        if not (error.sqlstate or "").startswith(_PASSING):
            return error
        hint = "look at the server: its disk, and what this user may do"
        return NoRoom(f"{self.name} does not take it now: {self._sentence(error)}", hint)


_ENDED = "25P03"
"""SQLSTATE with which the server ends a session that was silent in a transaction."""


_PASSING = ("40", "53", "55", "57014", "42501", "25006")
"""Beginnings of SQLSTATE after which the same statement may work later: a deadlock, no memory or room, a lock, a person
who cancels statements, no permission now, a server that is read-only now."""


_FENCE = (
    "select 1 / count(*) from (select 1 from lease"
    " where holder = %s and term = %s and expires > clock_timestamp() for share) held"
)
"""An error unless the lease is held, so that the whole transaction fails in the same round trip."""


_STAND_BY = (
    "insert into standbys values (%s, %s, clock_timestamp())"
    " on conflict (holder) do update set seen = excluded.seen, who = excluded.who"
)


_TAKE = (
    "insert into lease values (1, %s, %s, 1, clock_timestamp() + make_interval(secs => %s))"
    " on conflict (id) do update set holder = excluded.holder, who = excluded.who, term = lease.term + 1,"
    " expires = excluded.expires where lease.expires <= clock_timestamp() returning term"
)


_RENEW = (
    "update lease set expires = clock_timestamp() + make_interval(secs => %s)"
    " where holder = %s and term = %s and expires > clock_timestamp()"
)


_RELEASE = "update lease set expires = clock_timestamp() where holder = %s and term = %s"


_LEASE_TABLES = (
    "create table if not exists lease (id integer primary key check (id = 1), holder text, who text, term bigint,"
    " expires timestamptz)",
    "create table if not exists standbys (holder text primary key, who text, seen timestamptz)",
)


def _postgres_tables(tables: str) -> list[str]:
    """SQLite's tables in PostgreSQL's types of the same size."""
    text = tables.replace("id integer primary key", "id bigint generated by default as identity primary key")
    text = text.replace(" integer", " bigint").replace(" real", " double precision")
    return [one for one in text.split(";") if one.strip()] + list(_LEASE_TABLES)


def _marks(sql: str) -> Any:
    return sql.replace("?", "%s")


def _clean(values: Sequence[Any]) -> list[Any]:
    """The values without the character NUL in texts, which PostgreSQL can't store; it may come from a node."""
    other = "\N{REPLACEMENT CHARACTER}"
    return [value.replace("\0", other) if isinstance(value, str) else value for value in storable(values)]


def _sentence(error: Exception) -> str:
    """The first line of what the server or the driver says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
