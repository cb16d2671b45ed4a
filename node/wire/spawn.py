"""Starts the I/O process of a Wire (or a task of the shared thread in its place), and waits for its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess

from ...proto.process import python
from ..io.main import serve_trainer
from ..io.thread import IoThread, IoWork
from ..ipc.arena import Arena

ENDED_SECONDS = 2.0
_CRASHES = {"SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL"}


class IoHost:
    """The process (or the task of the shared thread) that runs the I/O side of a Wire."""

    def __init__(self, pipe: socket.socket, descriptors: tuple[int, int], size: int, process: bool) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._work: IoWork | None = None
        if not process:
            send, receive = (Arena(descriptor, size) for descriptor in descriptors)
            self._work = IoThread.run(serve_trainer(pipe, send, receive))
            return
        numbers = (pipe.fileno(), *descriptors)
        command = python.module("farflung.node.io.main", *map(str, (*numbers, size)))
        # gRPC's own log would write every refused connection to the terminal.
        environment = {"GRPC_VERBOSITY": "NONE"} | dict(os.environ)
        # A session of its own: the terminal's Ctrl-C reaches only the trainer, which says goodbye first.
        self._process = subprocess.Popen(
            command, pass_fds=numbers, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )
        pipe.close()

    @property
    def pid(self) -> int | None:
        """The process's id; None for a thread."""
        return None if self._process is None else self._process.pid

    def ended(self) -> str:
        """How it ended, in words that follow its name. Called when its pipe has closed, which may be a moment before
        its end."""
        if self._process is None:
            return "has ended"
        try:
            status = self._process.wait(ENDED_SECONDS)
        except subprocess.TimeoutExpired:
            return "has closed its pipe"
        if status >= 0:
            return f"has ended with exit status {status}"
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        crash = ", a crash in native code" if name in _CRASHES else ""
        return f"was ended by {name}{crash}"

    def wait(self, timeout: float) -> None:
        """Waits for its end, after the pipe was closed; a process that does not end is killed."""
        if self._work is not None:
            self._work.wait(timeout)
        if self._process is not None:
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
