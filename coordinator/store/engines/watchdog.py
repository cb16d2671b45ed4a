"""Ends waits for a database server that keeps a connection open but does not answer, because it or its machine is
frozen.

The coordinator's event loop would wait for ever, because such a server's kernel still acknowledges packets. A thread
only checks one number, so statements have no further cost.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

LOOK_S = 0.5


class Watchdog:
    """``over(connection)`` encloses a block that waits for a server: the connection is shut down if the block takes
    longer than ``most_s``."""

    def __init__(self, most_s: float) -> None:
        self.most_s = most_s
        self._began: tuple[float, int] | None = None
        """(since when the block waits, file descriptor of the connection)."""
        self._closed = threading.Event()
        self._ending = threading.Lock()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def over(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """While the block runs."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="database watchdog", daemon=True)
            self._thread.start()
        outer, self._began = self._began, (time.monotonic(), connection.fileno())
        try:
            yield
        finally:
            with self._ending:  # after this its descriptor may belong to another file
                self._began = outer

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def _look(self) -> None:
        while not self._closed.wait(LOOK_S):
            with self._ending:
                began = self._began
                if began is None or time.monotonic() - began[0] < self.most_s:
                    continue
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(began[1])) as wire:
                    wire.shutdown(socket.SHUT_RDWR)  # whoever waits for it sees it end
