"""Searches for plans in a separate process. A search takes up to some seconds of processor time; meanwhile the event
loop has thousands of heartbeats to take, and a thread would hold the interpreter's lock half of the time.

One process searches, one question a time. If it ends in the middle (the kernel kills the largest when memory is short),
another is started and asked once more.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ...proto.process import python
from ...scheduler.plans import Plan
from ..membership.questions import Answer
from .planner import Search
from .search_process import SEARCHES

log = logging.getLogger(__name__)

COMMAND = tuple(python.module("farflung.coordinator.planning.search_process"))
_TRIES = 2


class Searches:
    """``spent``: seconds of the processor that searches have taken."""

    def __init__(self, command: Sequence[str] = ()) -> None:
        """``command``: the program that answers; for tests."""
        self.spent = 0.0
        self._command = list(command or COMMAND)
        self._process: subprocess.Popen[str] | None = None
        self._thread = ThreadPoolExecutor(1, "plans")  # its thread waits for the process
        self._lock = threading.Lock()  # whoever starts the process, and whoever ends it
        self._closed = False

    def prepare(self) -> None:
        """Start the process, without waiting for it: a question will follow soon."""
        if self._process is None and not self._closed:
            self._thread.submit(self._started)

    async def answer(self, asked: Search) -> Answer:
        """The plan, or why there is none."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._answer, asked)

    def close(self) -> None:
        """End the process, and a search that goes on in it."""
        self._closed = True
        with self._lock:
            self._end()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _answer(self, asked: Search) -> Answer:
        line = SEARCHES.text(asked)
        for _ in range(_TRIES):
            try:
                found = json.loads(self._exchange(line))
                self.spent += float(found["seconds"])
                if "plan" in found:
                    return Answer(Plan.from_json(found["plan"]))
                return Answer(None, str(found["error"]))
            except (OSError, ValueError) as error:
                if self._closed:
                    return Answer(None, "the coordinator ends")
                why = self._ended(error)
                log.error("%s", why)
        return Answer(None, f"{why}, {_TRIES} times in a row")

    def _exchange(self, line: str) -> str:
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()
        return process.stdout.readline()

    def _started(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._closed:
                raise OSError("the coordinator ends")
            if self._process is None:
                pipe = subprocess.PIPE
                # A session of its own: Ctrl-C is the coordinator's to answer. It ends with its input.
                self._process = subprocess.Popen(
                    self._command, stdin=pipe, stdout=pipe, text=True, start_new_session=True
                )
            return self._process

    def _ended(self, error: Exception) -> str:
        """End a process that has exited or sent an invalid answer; the next question goes to a new one. Returns why, in
        words."""
        with self._lock:
            status = _status(self._process) if self._process is not None else None
            self._end()
        if status is not None and status < 0:
            return f"the process that searches for plans was killed by signal {-status}"
        return f"the process that searches for plans broke off ({error})"

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError as error:  # what was not written yet
                    log.debug("closing a pipe of the search: %s", error)


def _status(process: subprocess.Popen[str]) -> int | None:
    """The exit status of a process that seems to have ended; None where it still runs."""
    try:
        return process.wait(1.0)
    except subprocess.TimeoutExpired:
        return None
