"""Serves a run from when nodes may join until it is done, has failed, or a signal comes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine
from typing import Any

from ...proto.connections.patience import Watch
from .. import events
from ..membership import signals as s
from ..observe.takers.eval_command import EvalCommand
from ..run.run import Run
from .interrupts import INTERRUPTED, Interrupted, unless
from .starting.options import Start

log = logging.getLogger(__name__)

PARTING_S = 10.0
"""Seconds to wait for nodes that were told to leave."""


async def until_over(run: Run, emit: events.Emit, stop: asyncio.Event, command: EvalCommand | None = None) -> int:
    """Tick until the run is done (returns 0), has failed (raises) or ``stop`` is set (raises Interrupted)."""
    ticking = asyncio.create_task(run.tick())
    try:
        await unless(stop, _first_of(run.outcome.finished.wait(), ticking))
    finally:
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
    if run.outcome.failure is not None:
        raise run.outcome.failure
    result, mirror = run.outcome.result, run.saving.mirror
    assert result is not None
    if mirror is not None or command is not None:
        await run.stop("the run is done", PARTING_S)  # nodes need not wait for the target, nor for the command
    if mirror is not None:
        await unless(stop, mirror.finish())
    if command is not None:
        await unless(stop, command.finish())
    if mirror is not None:
        result["checkpoint"] = next((row.path for row in run.context.store.checkpoints.all()[::-1]), None)
    emit(result)
    await run.stop("the run is done", PARTING_S)
    return 0


async def interrupted(start: Start, run: Run, emit: events.Emit) -> int:
    """A signal came: leave the run to another coordinator, or end it with a last checkpoint. Returns the exit
    status."""
    server = start.store.server
    if server is not None and (successors := server.standbys()):
        emit(events.event("notice", message=f"leaves the run to {successors[0]}", node=""))
        await run.abandon()
        return INTERRUPTED
    why = await _save(run, emit, start.at_once)
    emit(events.interrupted(*run.live.reached, why))
    start.store.put("phase", "interrupted")
    with contextlib.suppress(Interrupted):
        await unless(start.at_once, run.stop("the coordinator was interrupted", PARTING_S))
    return INTERRUPTED


async def _save(run: Run, emit: events.Emit, at_once: asyncio.Event) -> str:
    """Make a last checkpoint, if the training nodes can do so in time and no second signal comes. Returns why not, or
    ""."""
    if not run.trains:
        return "no node trained"
    emit(events.phase("stopping", "the coordinator was told to end"))
    emit(events.event("notice", message="stopping: a last checkpoint first; Ctrl-C again leaves at once", node=""))
    run.feed(s.Save("the coordinator was told to end"))
    checkpoints = run.context.checkpoints
    ticking = asyncio.create_task(run.tick())
    watch = Watch("the last checkpoint", time.monotonic(), run.state.rules.save_s, checkpoints.arrived)
    saved = asyncio.create_task(unless(at_once, run.ending.saved()))
    try:
        while not saved.done():
            await asyncio.wait([saved], timeout=0.2)
            watch = watch.at(checkpoints.arrived, time.monotonic())
            if stood := watch.gives_up(time.monotonic()):
                log.warning("left without a last checkpoint: %s", stood)
                return stood
        saved.result()
        return "" if run.trains else "nobody was left to make one"
    except Interrupted:
        log.warning("left without a last checkpoint")
        return "told to end at once"
    finally:
        ticking.cancel()
        saved.cancel()
        await asyncio.gather(ticking, saved, return_exceptions=True)


async def _first_of(waiting: Coroutine[Any, Any, Any], ticking: asyncio.Task[None]) -> None:
    """Wait until ``waiting`` is done; an error in the ticking task is raised."""
    task = asyncio.ensure_future(waiting)
    try:
        await asyncio.wait([task, ticking], return_when=asyncio.FIRST_COMPLETED)
        if ticking.done() and not task.done():
            ticking.result()
    finally:
        task.cancel()
