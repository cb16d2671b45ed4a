"""Child processes of a local run: their events, their logs, and an end that leaves no process behind.

Each child is ``python -m farflung ...`` in a process group of its own, so that Ctrl-C at the terminal reaches only the
parent, which then ends the children in order. A child also holds the reading end of a pipe (its *lifeline*) as
stdin: when the parent dies, however it dies, the pipe ends and the child interrupts itself and says goodbye.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...proto.process import python

_PACKAGE = __name__.partition(".")[0]


@dataclass(frozen=True)
class Said:
    """A child wrote an event."""

    child: Child
    event: dict[str, Any]


@dataclass(frozen=True)
class Ended:
    """A child has ended, with this status (negative: the signal that killed it)."""

    child: Child
    status: int


@dataclass
class Child:
    """One started process. ``error`` is the last error event that it wrote."""

    name: str
    process: subprocess.Popen[str]
    log: Path
    error: dict[str, Any] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def work(self) -> float:
        """The work of it and its own children: seconds of processor time, plus one for each MB read or written. It
        hardly grows in a process that only waits; without /proc it stays 0."""
        if not Path("/proc/self/stat").exists():
            return 0.0
        return sum(map(_work_of, _family(self.process.pid)))

    def end_text(self) -> str:
        """How it ended, in words."""
        status = self.process.poll()
        if status is None:
            return "still running"
        if status < 0:
            with contextlib.suppress(ValueError):
                return f"killed by {signal.Signals(-status).name}"
        if self.error:
            return str(self.error.get("message"))
        return f"ended with exit status {status}, see {self.log}"


def _family(pid: int) -> list[int]:
    """The ids of a process and all its descendants that are alive."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def _work_of(pid: int) -> float:
    """The work of one process, including its children that have ended. 0 where the process itself has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
        moved = Path(f"/proc/{pid}/io").read_text().split()[1:4:2]
        return sum(map(int, times)) / os.sysconf("SC_CLK_TCK") + sum(map(int, moved)) / 1e6
    return 0.0


class Children:
    """The processes of one local run, with one queue for all their events."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.all: list[Child] = []
        self.said: queue.Queue[Said | Ended] = queue.Queue()
        self._readers: list[threading.Thread] = []
        self._lifeline, self._hold = os.pipe()

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        lifeline: bool = True,
    ) -> Child:
        """Start ``python -m farflung ARGUMENTS --json``; its stderr goes to FOLDER/NAME.log.

        Args:
            lifeline: pass ``--lifeline``, an option of the long-running commands.
        """
        log = self.folder / f"{name}.log"
        command = python.module(_PACKAGE, *arguments, "--json", *(["--lifeline"] if lifeline else []))
        with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8") as stderr:
            process = subprocess.Popen(
                command,
                stdin=self._lifeline,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                encoding="utf-8",
                errors="replace",
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        child = Child(name, process, log)
        self.all.append(child)
        reader = threading.Thread(target=self._read, args=(child,), name=f"read-{name}", daemon=True)
        reader.start()
        self._readers.append(reader)
        return child

    def _read(self, child: Child) -> None:
        stdout = child.process.stdout
        assert stdout is not None
        with stdout:
            for line in stdout:
                try:
                    event = json.loads(line)
                except ValueError:
                    event = {"event": "warning", "message": line.strip(), "node": child.name}
                if isinstance(event, dict):
                    if event.get("event") == "error":
                        child.error = event
                    self.said.put(Said(child, event))
        self.said.put(Ended(child, child.process.wait()))

    def next(self, timeout: float | None = None) -> Said | Ended | None:
        """The next event of a child, or its end; None after ``timeout`` seconds."""
        try:
            return self.said.get(timeout=timeout)
        except queue.Empty:
            return None

    def finish(self, children: Iterable[Child], patience: float) -> list[Child]:
        """Wait up to ``patience`` seconds for these to end by themselves; returns those that have not."""
        deadline = time.monotonic() + patience
        left = [child for child in children if child.alive]
        while left and time.monotonic() < deadline:
            time.sleep(0.05)
            left = [child for child in left if child.alive]
        return left

    def stop(self, patience: float = 10.0) -> None:
        """End every child: ask (SIGINT), wait ``patience`` seconds, then kill what is left of each process group."""
        running = [child for child in self.all if child.alive]
        for child in running:
            with contextlib.suppress(ProcessLookupError):
                child.process.send_signal(signal.SIGINT)
        try:
            self.finish(running, patience)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill what is left of each child's process group, and close the lifeline."""
        for child in self.all:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()
        for reader in self._readers:
            reader.join(timeout=5.0)
        for descriptor in (self._lifeline, self._hold):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def hold_lifeline() -> None:
    """Interrupt this process when its stdin ends, because its parent has died. A child calls this once."""

    def watch() -> None:
        with contextlib.suppress(OSError, ValueError):
            while os.read(0, 4096):
                continue
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
