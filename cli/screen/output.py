"""The output of a command: JSON lines for scripts, text for people, and errors for both.

Results go to stdout, logs and errors to stderr. With ``--json`` stdout carries one object a line and nothing else.
Every error that leaves a command passes through :func:`explain`, which decides the words for people and the exit status
for scripts.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sqlite3
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from ...proto.errors import FarflungError
from ...proto.process.logs import log_line
from ...proto.words.border import harmless

DONE = 0
WRONG = 2
FAILED = 4
INTERRUPTED = 130


class Output:
    """stdout and stderr of one command. Text from other machines is never written raw to a terminal.

    Args:
        as_json: one JSON object a line on stdout.
        debug: show tracebacks.
        stdout, stderr: where to write; the process's own streams by default.
        json_logs: stderr carries one JSON object a line too.
    """

    def __init__(
        self,
        as_json: bool = False,
        debug: bool = False,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        json_logs: bool = False,
    ) -> None:
        self.json = as_json
        self.debug = debug
        self.json_logs = json_logs
        self.stdout = stdout if stdout is not None else sys.stdout
        self.stderr = stderr if stderr is not None else sys.stderr
        self.lasts = False
        """Set by a long-running command: it continues when its stdout is closed (`| head`), and its exit status is that
        of its work."""

    @property
    def rich(self) -> bool:
        """Whether a person at a terminal reads stdout: tables, bars and colours are then welcome."""
        return not self.json and self.stdout.isatty() and os.environ.get("TERM") != "dumb"

    def record(self, record: Mapping[str, Any]) -> None:
        """Write one object as one line of JSON. Non-finite numbers become null, as JSON has no word for them."""
        self._write(self.stdout, json.dumps(_plain(record), separators=(", ", ": "), allow_nan=False))

    def event(self, event: Mapping[str, Any]) -> None:
        """Write an event; ``time`` (seconds since the epoch) is added where it is missing."""
        self.record({"time": round(time.time(), 3), **event})

    def say(self, text: str = "") -> None:
        """Write a line for a person; nothing with ``--json``."""
        if not self.json:
            self._write(self.stdout, harmless(text))

    @contextlib.contextmanager
    def working(self, text: str) -> Iterator[None]:
        """Show a person at a terminal that this is being done, for as long as it is."""
        if not self.rich:
            yield
            return
        from rich.console import Console

        with Console(file=self.stdout).status(text):
            yield

    def note(self, text: str, level: str = "info") -> None:
        """Write a line beside the result: progress, remarks. Always on stderr."""
        self._write(self.stderr, log_line(level, text) if self.json_logs else harmless(text))

    def close(self) -> None:
        """Flush stdout. If that fails, the rest is lost, and Python must not flush again at its exit, which would
        change the exit status."""
        for stream in (self.stdout, self.stderr):
            try:
                stream.flush()
            except OSError:
                self._write_nowhere(stream)

    def _write(self, stream: TextIO, line: str) -> None:
        try:
            stream.write(line + "\n")
            stream.flush()
        except BrokenPipeError:  # the reader has closed the pipe
            if not self.lasts:
                raise
            self._write_nowhere(stream)

    @staticmethod
    def _write_nowhere(stream: TextIO) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

    def fail(self, error: BaseException) -> int:
        """Report an error that ended the command; returns the exit status."""
        if isinstance(error, BrokenPipeError) and not self.lasts:  # the reader closed the pipe, as `head` does
            self._write_nowhere(self.stdout)
            return DONE
        message, hint, status = explain(error)
        if status == INTERRUPTED:
            self.note("interrupted")
            return status
        if self.debug:
            self.note("".join(traceback.format_exception(error)).rstrip(), "error")
        if self.json:
            self.event({"event": "error", "message": message, "hint": hint})
        else:
            self.note(error_text(message, hint), "error")
        return status


def error_text(message: str, hint: str) -> str:
    """An error in two lines: what happened and where; what to type or change next."""
    return f"error: {message}" + (f"\nhint: {hint}" if hint else "")


def explain(error: BaseException) -> tuple[str, str, int]:
    """(message, hint, exit status) for an error that ended a command."""
    if isinstance(error, FarflungError):
        return error.message, error.hint, error.status
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "", INTERRUPTED
    if isinstance(error, _sentences()):
        return str(error), _HINTS[type(error).__name__], WRONG
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}", _TAKES_NOTHING if error.errno in _WRITING else "", WRONG
    if isinstance(error, sqlite3.OperationalError) and any(one in str(error) for one in ("readonly", "unable to open")):
        return f"the run's database: {error}", _TAKES_NOTHING, WRONG
    place = traceback.extract_tb(error.__traceback__)
    where = f" at {place[-1].filename}:{place[-1].lineno}" if place else ""
    return (
        f"{type(error).__name__}: {error}{where}",
        "this should not happen; the same command with --debug shows how it came to it: please report that",
        FAILED,
    )


_WRITING = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
_TAKES_NOTHING = (
    "if it is to be written to, name another folder: --state DIR for a run, --cache DIR for a node, "
    "and for an export its second word"
)
_HINTS = {
    "CodecError": "farflung codecs lists them all, with their keys",
    "PlanError": "farflung plan --help; docs/scheduling.md has a cluster file, and farflung job init writes a job",
}


def _sentences() -> tuple[type[BaseException], ...]:
    """Errors of the libraries inside farflung whose text is already a sentence for the person at the terminal.

    They are looked up among the loaded modules, so that reporting an error never imports torch.
    """
    package = __name__.partition(".")[0]
    found = []
    for name, module in (("CodecError", "compress"), ("PlanError", "scheduler")):
        kind = getattr(sys.modules.get(f"{package}.{module}"), name, None)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            found.append(kind)
    return tuple(found)


def _plain(value: Any) -> Any:
    """The value with everything JSON can't say replaced: non-finite floats by null, sets and tuples by lists."""
    if isinstance(value, float):
        return value if value == value and value not in (float("inf"), float("-inf")) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, (str, int, bool)) or value is None:
        return value
    return str(value)
