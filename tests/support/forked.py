"""A local run's processes as forks of the nursery: they begin with torch and transformers loaded.

`ForkedPopen` takes the place of ``subprocess.Popen`` where `farflung.cli.local.children` starts a coordinator or a
node. It has what that file uses. The words, the environment, stdin, stdout, stderr and the session of the process are
the same; only the seconds of processor time in which Python loads its libraries are not spent.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TextIO

WHERE = "FARM_NURSERY"
"""The environment variable with the path of the nursery's socket."""


class ForkedPopen:
    """A process that the nursery forked for whoever asked at its socket, which it tells of the end."""

    def __init__(
        self, command: Sequence[str], *, stdin: int, stderr: TextIO, env: Mapping[str, str], **_: object
    ) -> None:
        reading, writing = os.pipe()
        words = list(command[command.index("farflung") + 1 :])
        order = {"words": words, "environment": dict(env), "cwd": os.getcwd(), "as_typed": True, "given": 3}
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(os.environ[WHERE])
        self._answers = self._socket.makefile("r")
        socket.send_fds(self._socket, [json.dumps(order).encode() + b"\n"], [stdin, writing, stderr.fileno()])
        self.pid: int = json.loads(self._answers.readline())["pid"]
        os.close(writing)
        self.stdout = os.fdopen(reading, "r", encoding="utf-8", errors="replace")
        self.returncode: int | None = None
        self._ending = threading.Lock()

    def poll(self) -> int | None:
        if not self._ending.acquire(blocking=False):
            return None  # another thread waits for the end
        try:
            return self._ended() if self.returncode is None and self._said() else self.returncode
        finally:
            self._ending.release()

    def wait(self) -> int:
        with self._ending:
            return self._ended() if self.returncode is None else self.returncode

    def _said(self) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            return bool(selector.select(0))

    def _ended(self) -> int:
        self.returncode = int(json.loads(self._answers.readline())["status"])
        self._answers.close()
        self._socket.close()
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


_ASKS = f"""\
import json, os, socket, sys
nursery = socket.socket(socket.AF_UNIX)
nursery.connect(os.environ["{WHERE}"])
order = {{"module": sys.argv[1], "words": sys.argv[2:], "environment": dict(os.environ), "cwd": os.getcwd()}}
order |= {{"given": 3, "bound": True}}
socket.send_fds(nursery, [json.dumps(order).encode() + b"\\n"], [0, 1, 2])
for one in (0, 1):
    os.close(one)
with nursery.makefile() as answers:
    answers.readline()
    status = json.loads(answers.readline())["status"]
if status < 0:
    os.kill(os.getpid(), -status)
os._exit(status)
"""


def module(name: str, *words: str) -> list[str]:
    """A command that does as ``python -m NAME WORDS`` of farflung's does, by a fork of the nursery, which ends with it;
    in the place of `farflung.proto.process.python.module`."""
    return [sys.executable, "-S", "-c", _ASKS, name, *words]


IN_ITS_PLACE: Any = SimpleNamespace(Popen=ForkedPopen, PIPE=subprocess.PIPE)
"""What `farflung.cli.local.children` uses of ``subprocess``."""
