"""farflung's commands as processes that start at once: a process that has the libraries loaded forks for each.

Torch and transformers take a process of a command seconds to load, most of what such a test costs.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from forked import WHERE

PATIENCE = 240.0
"""Seconds that anything may take: ten times what it takes on a machine with nothing else to do."""


class NurseryProcess:
    """The process that starts the others; whoever knows ``socket`` connects to it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="farflung-nursery-")
        self.socket = str(Path(self._folder.name, "socket"))
        with socket.socket(socket.AF_UNIX) as listener:  # it hears whoever connects while it begins
            listener.bind(self.socket)
            listener.listen(64)
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("nursery.py")), str(listener.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                env={**os.environ, "OMP_NUM_THREADS": "1", WHERE: self.socket},
            )

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._folder.cleanup()


class Nursery:
    """A connection to a process that starts others: all tests of a process have one."""

    def __init__(self, at: str = "") -> None:
        """``at``: the socket of a process that somebody else started; otherwise it has its own."""
        self._own = None if at else NurseryProcess()
        self.socket = at or self._own.socket
        self._replies: queue.Queue[int] = queue.Queue()
        self.ended: dict[int, int] = {}
        """Exit status of what has ended, by pid."""
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(self.socket)
        reading, self._lifeline = os.pipe()
        socket.send_fds(self._connection, [b'{"lifeline": true}\n'], [reading])
        os.close(reading)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def begin(self, order: dict[str, Any]) -> int:
        """Start a command; its pid."""
        self._connection.sendall(json.dumps(order).encode() + b"\n")
        return self._replies.get(timeout=PATIENCE)

    def close(self) -> None:
        self._connection.shutdown(socket.SHUT_WR)
        self._reader.join(60)
        self._connection.close()
        os.close(self._lifeline)
        if self._own is not None:
            self._own.close()

    def _read(self) -> None:
        with self._connection.makefile("rb") as lines:
            for line in lines:
                said = json.loads(line)
                if "pid" in said:
                    self._replies.put(said["pid"])
                else:
                    self.ended[said["ended"]] = said["status"]

    def start(self, *words: str, out: Path, errors: Path, cwd: Path | None = None, **environment: str) -> Started:
        """``python -m farflung WORDS`` with an empty stdin; what it prints goes to the two files."""
        out.touch()
        order = {"words": words, "stdout": str(out), "stderr": str(errors), "environment": environment}
        return Started(self, self.begin({**order, "cwd": str(cwd or Path.cwd()), "as_typed": True}))

    def run(
        self, *words: str, cwd: Path | None = None, timeout: float = PATIENCE, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """The same to its end. subprocess.TimeoutExpired, and then it is killed."""
        with tempfile.TemporaryDirectory() as folder:
            out, errors = Path(folder, "out"), Path(folder, "errors")
            started = self.start(*words, out=out, errors=errors, cwd=cwd, **environment)
            try:
                status = started.wait(timeout)
            finally:
                started.kill()
            return subprocess.CompletedProcess(words, status, out.read_text(), errors.read_text())


class Started:
    """A process that the nursery started, as ``subprocess.Popen`` has it."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid, self.returncode = pid, None
        self._nursery = nursery

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode: int | None = self._nursery.ended.pop(self.pid, None)
        return self.returncode

    def wait(self, timeout: float = PATIENCE) -> int:
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
