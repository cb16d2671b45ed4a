"""The I/O process as a thread of this process, for tests: one event loop, shared by every Wire that asks for it.

There is one loop because gRPC has one completion queue per process, and several loops would interfere.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any


class IoThread:
    """A daemon thread with an event loop. It ends with the last piece of work that was started on it."""

    _lock = threading.Lock()
    _current: IoThread | None = None

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._users = 0
        self._thread = threading.Thread(target=self._loop.run_forever, name="farflung-io", daemon=True)
        self._thread.start()

    @classmethod
    def run(cls, work: Coroutine[Any, Any, None]) -> IoWork:
        """Starts `work` on the shared loop."""
        with cls._lock:
            if cls._current is None:
                cls._current = IoThread()
            cls._current._users += 1
            return IoWork(cls._current, asyncio.run_coroutine_threadsafe(work, cls._current._loop))

    def leave(self) -> None:
        """One piece of work has ended; after the last the loop is closed and the thread joined."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            IoThread._current = None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


class IoWork:
    """Work on the shared loop that another thread can wait for."""

    def __init__(self, thread: IoThread, future: concurrent.futures.Future[None]) -> None:
        self._thread, self._future = thread, future

    def wait(self, timeout: float) -> None:
        """Waits until the work has ended; cancels it after `timeout` seconds."""
        try:
            self._future.result(timeout)
        except (TimeoutError, concurrent.futures.TimeoutError):
            self._future.cancel()
        finally:
            self._thread.leave()
