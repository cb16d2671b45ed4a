"""Uploads complete checkpoints to a remote target, the newest first, without holding up the run.

A local copy stays until a newer checkpoint is complete and its own upload has ended. While the target cannot be
reached the newest is tried again and again; people are told once, and ``status`` shows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from ... import events
from ...checkpoints.targets import Target, TargetAway
from ...data.facts import in_thread
from ...store.engines.database import LeaseLost
from ..context import RunContext
from ..warnings import Warn

log = logging.getLogger(__name__)

FIRST_RETRY_S, LONGEST_RETRY_S = 2.0, 60.0
ForgetOld = Callable[[], None]
"""Deletes the database's rows of checkpoints that no longer exist anywhere."""
PATIENCE_S = 60.0
"""Seconds that the end of a run waits for a target that does not answer."""


class Mirror:
    """``there``: steps that are at the target; ``keep``: how many of them stay there."""

    def __init__(
        self, target: Target, keep: int, there: set[int], context: RunContext, warn: Warn, forget_old: ForgetOld
    ) -> None:
        self.target, self.keep, self.there = target, keep, there
        self._store, self._checkpoints, self._emit = context.store, context.checkpoints, context.emit
        self._warn, self._forget_old = warn, forget_old
        self._away = ""
        self._since = 0.0
        """When uploads began to fail; only meaningful while ``_away`` is set."""
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._tell()

    def wake(self) -> None:
        """A checkpoint is complete."""
        self._idle.clear()
        self._wake.set()

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Upload while the block runs."""
        task = self._task = asyncio.create_task(self._work())
        try:
            yield
        finally:
            task.cancel()
            (ended,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(ended, Exception):
                log.error("carrying checkpoints to %s broke off", self.target.url, exc_info=ended)

    async def finish(self) -> None:
        """Wait until the newest checkpoint is at the target, or the target has not answered for PATIENCE_S."""
        self.wake()
        began = time.monotonic()
        while not self._idle.is_set():
            if self._task is not None and self._task.done():
                self._task.result()  # an error of the task ends this wait too
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._idle.wait(), 0.2)
            if self._away and time.monotonic() - max(began, self._since) > PATIENCE_S:
                newest = self._checkpoints.steps()[-1]
                where = self._checkpoints.path(newest)
                self._warn("", f"the last checkpoint is in {where} only; starting again carries it to the target")
                return

    async def _work(self) -> None:
        pause = FIRST_RETRY_S
        while True:
            self._wake.clear()
            try:
                step = self._next()
                if step is None:
                    self._idle.set()
                    await self._wake.wait()
                    continue
                await in_thread(self._carry, step)
                pause = FIRST_RETRY_S
                self._arrived(step)
                continue
            except LeaseLost:
                raise  # another coordinator uploads now
            except TargetAway as error:
                self._failed(error.message)
            except Exception as error:  # whatever the error is, the next checkpoint is tried too
                log.exception("carrying a checkpoint to %s failed", self.target.url)
                self._failed(f"carrying a checkpoint to {self.target.url} failed: {type(error).__name__}: {error}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_RETRY_S)

    def _next(self) -> int | None:
        """The newest local checkpoint's step, if it is not at the target; else None."""
        newest = self._checkpoints.steps()[-1:]
        return newest[0] if newest and newest[0] not in self.there else None

    def _carry(self, step: int) -> None:
        with self._checkpoints.held(step) as folder:
            self.target.upload(folder, step, self._check)
        self._check()
        self.target.prune(self.keep, step)
        self.there = {one for one in self.target.steps() if one <= step}

    def _check(self) -> None:
        """Raises LeaseLost when another coordinator may upload now: a frozen thread may wake up in the middle of an
        upload."""
        if (server := self._store.server) is not None:
            server.check_lease()

    def _arrived(self, step: int) -> None:
        if self._away:
            self._away = ""
            self._emit(events.event("notice", message=f"{self.target.url} takes checkpoints again", node=""))
        rows = {row.step: row for row in self._store.checkpoints.all()}
        address = self.target.address(step)
        if step in rows:
            self._store.checkpoints.put(replace(rows[step], path=address))
        self._forget_old()
        self._emit(events.event("checkpoint", step=step, path=address))
        self._tell()

    def _failed(self, why: str) -> None:
        if not self._away:
            self._since = time.monotonic()
            here = self._checkpoints.folder
            self._warn("", f"{why}; training goes on, the newest checkpoint stays in {here} and is tried again")
        self._away = why
        self._tell()

    def _tell(self) -> None:
        """Store the mirror's state for ``status``."""
        state = {"to": self.target.url, "newest": max(self.there, default=None), "why": self._away}
        self._store.put("target", json.dumps(state))
