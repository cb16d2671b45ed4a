"""A real PostgreSQL server for tests, on a Unix socket in a temporary folder; and its databases' addresses."""

import contextlib
import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

_START_S = 120.0


class Server:
    """A server that is started, killed and started again; every schema is a database of its own to a coordinator."""

    def __init__(self, folder: Path, binaries: Path, account: dict[str, Any]) -> None:
        self.folder, self._binaries, self._account = folder, binaries, account
        self._process: subprocess.Popen[bytes] | None = None
        self._schemas = 0

    def initialise(self) -> None:
        words = ["-D", str(self.folder / "data"), "-A", "trust", "-U", "farflung", "--no-sync", "-E", "UTF8"]
        command = [str(self._binaries / "initdb"), *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self.folder, **self._account)

    def start(self) -> None:
        words = ["-D", str(self.folder / "data"), "-k", str(self.folder), "-h", "", "-F", "-c", "max_connections=20"]
        command = [str(self._binaries / "postgres"), *words]
        import psycopg

        deadline = time.monotonic() + _START_S
        while True:
            if self._process is None or self._process.poll() is not None:  # what the last one left may still be in use
                with (self.folder / "log").open("ab") as log:
                    self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, **self._account)
            with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.url()):
                return
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-3000:]
            time.sleep(0.2)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # ends all sessions and stops
            self._process.wait(_START_S)
            self._process = None

    def url(self, schema: str = "public") -> str:
        options = quote(f"-csearch_path={schema}")
        return f"postgresql://farflung@/postgres?host={quote(str(self.folder), safe='')}&options={options}"

    def new_database(self) -> str:
        """The address of an empty database."""
        import psycopg

        self._schemas += 1
        with psycopg.connect(self.url(), autocommit=True) as db:
            db.execute(f"create schema run_{self._schemas}")
        return self.url(f"run_{self._schemas}")


@contextlib.contextmanager
def running_server() -> Iterator[Server]:
    """A server while the block runs; the test is skipped where there is none, with the reason."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'farflung[postgres]'")
    found = shutil.which("initdb") or max(glob.glob("/usr/lib/postgresql/*/bin/initdb"), default=None)
    if found is None:
        pytest.skip("no PostgreSQL server is installed: apt-get install postgresql")
    account: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp(prefix="farflung-pg-", dir="/tmp"))  # a socket's path must be short
    if os.getuid() == 0:
        try:
            found_user = pwd.getpwnam("postgres")
        except KeyError:
            folder.rmdir()
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
        account = {"user": found_user.pw_uid, "group": found_user.pw_gid, "extra_groups": []}
        os.chown(folder, found_user.pw_uid, found_user.pw_gid)
    server = Server(folder, Path(os.path.realpath(found)).parent, account)
    try:
        server.initialise()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
