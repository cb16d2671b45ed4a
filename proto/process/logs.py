"""Logs on stderr, as lines for people or as one JSON object a line; the same in every process of farflung."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import logging
import os
import sys
import time
from typing import Any, TextIO

from ..words.border import harmless

LEVEL, FORMAT = "FARFLUNG_LOG", "FARFLUNG_LOG_FORMAT"
"""Environment variables: the lowest level that is written (default WARNING; INFO for JSON), and ``text`` or ``json``.
Child processes inherit both."""
FORMATS = ("text", "json")


class Lines(logging.Formatter):
    """``LEVEL message`` in one line, and a traceback. Text from other machines in it cannot contain control characters
    or line ends."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        return super().formatMessage(record).replace("\n", " ")

    def format(self, record: logging.LogRecord) -> str:
        """Lines for people."""
        return harmless(super().format(record))


class JsonLines(logging.Formatter):
    """``time`` (seconds since the epoch), ``level``, ``logger``, ``message``, and ``error`` with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        error = self.formatException(record.exc_info) if record.exc_info else None
        return log_line(record.levelname.lower(), record.getMessage(), record.name, record.created, error)


def log_line(level: str, message: str, logger: str = "farflung", when: float | None = None, error: Any = None) -> str:
    """A line of a JSON log."""
    line = {
        "time": round(time.time() if when is None else when, 3),
        "level": level,
        "logger": logger,
        "message": message,
    }
    return json.dumps({**line, "error": error} if error else line)


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]  # no brackets before Python 3.11
    """Our own class, so that a second ``set_up`` replaces only the handler of the first."""


def set_up(format: str | None = None, stream: TextIO | None = None) -> str:
    """Begin to log, in ``format``, or by default in the environment's. Returns the format."""
    if not faulthandler.is_enabled():
        with contextlib.suppress(io.UnsupportedOperation, AttributeError):  # stderr is no file
            faulthandler.enable(stream or sys.stderr)  # a crash in native code leaves its threads' stacks there
    format = format or os.environ.get(FORMAT) or "text"
    os.environ[FORMAT] = format
    level = os.environ.get(LEVEL) or ("INFO" if format == "json" else "WARNING")
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else Lines("%(levelname)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [*(one for one in root.handlers if not isinstance(one, _Handler)), handler]
    root.setLevel(level)
    return format
