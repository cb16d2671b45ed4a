"""What else happens to a run in chaos.py: processes stopped one by one or all at once, links that work one way or lose,
clocks that jump, a locked database, several deaths at a time, a second coordinator, an out-of-memory kill.

Losses are made in the relay before a node (tests/support/cable.py): a piece of a stream that is lost comes after the
sender's retransmission timer, which doubles with each loss in a row, as TCP's does. A clock is that of Python's
``time``, moved in one process at a time by a file that ``sitecustomize`` reads.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING

from farm import Process

if TYPE_CHECKING:
    from farm import Farm

KINDS = ("trainer_nap", "all_nap", "one_way", "lossy", "clock", "locked", "both", "twin", "oom")
LOSS, LOSSY_S = 0.3, 10.0

CLOCK = """\
import os, time
_now, _file = time.time, os.path.join({folder!r}, f"clock-{{os.getpid()}}")
def _jumped():
    try:
        with open(_file) as file:
            return _now() + float(file.read() or 0)
    except OSError:
        return _now()
time.time = _jumped
"""


def jumping_clocks(folder: Path) -> None:
    """Let the processes of a farm look for a file that moves their clock."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(CLOCK.format(folder=str(folder)), encoding="utf-8")


class Harsh:
    """The events, by name; beside them a farm, a chance and nodes."""

    farm: Farm
    chance: random.Random
    nodes: dict[str, Process]

    @property
    def alive(self) -> list[str]:
        raise NotImplementedError

    def _trainer_nap(self, name: str) -> None:
        """The trainer alone is stopped; its I/O process beats on."""
        self.nodes[name].send(signal.SIGSTOP)
        time.sleep(self.chance.uniform(0.5, 5.0))
        self.nodes[name].send(signal.SIGCONT)

    def _all_nap(self, name: str) -> None:
        """Every process of the run is stopped at once, as when a host is suspended."""
        everybody = [self.nodes[one] for one in self.alive] + [self.farm.c]
        for process in everybody:
            process.freeze()
        time.sleep(self.chance.uniform(0.5, 6.0))
        for process in everybody:
            process.thaw()

    def _one_way(self, name: str) -> None:
        """Nothing gets to the node any more by the connections that others opened; what it answers does."""
        self.farm.cables[name].one_way = True
        time.sleep(self.chance.uniform(0.5, 8.0))
        if name in self.farm.cables:
            self.farm.cables[name].one_way = False

    def _lossy(self, name: str) -> None:
        self.farm.cables[name].loss = LOSS
        time.sleep(LOSSY_S)
        if name in self.farm.cables:
            self.farm.cables[name].loss = 0.0

    def _clock(self, name: str) -> None:
        """The clock of a node's processes, or of the coordinator's, jumps for a while and back."""
        process = self.chance.choice([self.nodes[name], self.farm.c])
        files = [self.farm.folder / f"clock-{pid}" for pid in process.family]
        for file in files:
            file.write_text(str(self.chance.choice((-86_400, -30, 30, 3_600, 30 * 86_400))), encoding="utf-8")
        time.sleep(self.chance.uniform(0.5, 3.0))
        for file in files:
            file.unlink(missing_ok=True)

    def _locked(self, name: str) -> None:
        """Somebody else holds the database's write lock."""
        with contextlib.closing(sqlite3.connect(self.farm.state / "run.sqlite", timeout=30)) as other:
            other.execute("begin immediate")
            time.sleep(self.chance.uniform(0.5, 8.0))
            other.rollback()

    def _both(self, name: str) -> None:
        """The coordinator and a node are killed together."""
        self.farm.c.send(signal.SIGKILL)
        self.nodes[name].kill()
        self.farm.cables.pop(name).close()
        self.farm.wait(lambda: not self.farm.c.alive, "the coordinator is killed")
        time.sleep(self.chance.uniform(0.0, 2.0))
        self.farm.coordinator()

    def _twin(self, name: str) -> None:
        """A second coordinator on a copy of the state folder, while the first one leads."""
        copy = self.farm.folder / f"copy-{len(self.farm.processes)}"
        shutil.copytree(self.farm.state, copy, ignore=shutil.ignore_patterns("checkpoints*", "logs", "*.lock"))
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        words = ["coordinator", "start", "job.toml", "--state", copy.name, "--listen", f"127.0.0.1:{port}"]
        twin = Process(self.farm, "twin", words)
        time.sleep(self.chance.uniform(3.0, 6.0))
        twin.send(signal.SIGKILL)
        self.farm.wait(lambda: not twin.alive, "the second coordinator is killed")
        shutil.rmtree(copy)

    def _oom(self, name: str) -> None:
        """The kernel kills one process of a node, the trainer or the I/O process."""
        node = self.nodes[name]
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.chance.choice(node.family), signal.SIGKILL)
        time.sleep(1.0)
        if not node.alive:
            self.farm.cables.pop(name).close()
