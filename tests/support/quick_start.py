"""farflung's commands as processes that start at once: a process that has the libraries loaded forks for each.

Torch and transformers take a process of a command seconds to load, most of what such a test costs.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

PATIENCE = 240.0
"""Seconds that anything may take: ten times what it takes on a machine with nothing else to do."""


class Nursery:
    """The process that starts the others; one for all tests."""

    def __init__(self) -> None:
        self._replies: queue.Queue[int] = queue.Queue()
        self._ready: queue.Queue[str] = queue.Queue()
        self.ended: dict[int, int] = {}
        """Exit status of what has ended, by pid."""
        reading, self._lifeline = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("nursery.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[reading],
            env={**os.environ, "FARM_LIFELINE": str(reading), "OMP_NUM_THREADS": "1"},
        )
        os.close(reading)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def begin(self, order: dict[str, Any]) -> int:
        """Start a command; its pid."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        return self._replies.get(timeout=PATIENCE)

    @functools.cached_property
    def socket(self) -> str:
        """Where `forked.ForkedPopen` asks for a process."""
        return self._ready.get(timeout=PATIENCE)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._reader.join(60)
        self._process.stdout.close()
        os.close(self._lifeline)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "ready" in said:
                self._ready.put(said["ready"])
            elif "pid" in said:
                self._replies.put(said["pid"])
            elif "ended" in said:
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
