"""Work that a signal cancels, and the event loop that handles the signals."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

INTERRUPTED = 130
"""The exit status after SIGINT or SIGTERM."""
_Result = TypeVar("_Result")


class Interrupted(Exception):
    """A signal came before the work was done."""


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, _Result]) -> _Result:
    """The result of ``work``; Interrupted as soon as ``stop`` is set."""
    task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Interrupted
        return task.result()
    finally:
        for one in (task, stopped):
            one.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)


async def with_signals(main: Callable[[asyncio.Event, asyncio.Event], Awaitable[int]]) -> int:
    """``main(stop, at_once)``: SIGINT or SIGTERM sets the first, another one the second."""
    stop, at_once, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()

    def end() -> None:
        (at_once if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        # Python delivers signals only to the main thread; in another thread the caller ends the coordinator.
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
            loop.add_signal_handler(number, end)
    return await main(stop, at_once)


def run_loop(main: Coroutine[Any, Any, int]) -> int:
    """Run to the end on an event loop of its own."""
    if sys.platform == "win32":
        return asyncio.run(main)
    import uvloop

    result: int = uvloop.run(main)
    return result
