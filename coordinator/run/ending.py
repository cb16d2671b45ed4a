"""The end of a run, or of this coordinator's part in it: the nodes are told and get some time to leave."""

from __future__ import annotations

import asyncio
import contextlib

from ..membership import signals as s
from ..membership.orders import order_of
from ..membership.state import DONE, WAITING
from .context import RunContext
from .deciding import Deciding
from .effects.outcome import Outcome
from .nodes.announcing import Announcing
from .nodes.attendance import Attendance
from .nodes.streams import Streams

COME_BACK_S = 5.0
"""Seconds that the end waits for nodes whose control stream is broken at the time."""
_LOOK_S = 0.05


class Ending:
    """Tells nodes to leave, also those that come back after the others were told."""

    def __init__(
        self, context: RunContext, deciding: Deciding, streams: Streams, announcing: Announcing, outcome: Outcome
    ) -> None:
        self._context, self._deciding, self._streams = context, deciding, streams
        self._announcing, self._outcome = announcing, outcome
        self._absent: set[str] = set()
        """Nodes that had no open stream when all were told to leave, and have not come back since."""
        self._failed = False

    async def saved(self) -> None:
        """Wait until the requested checkpoint is complete, or cannot be made because nobody trains any more."""
        while (state := self._deciding.state).saving and state.phase not in (WAITING, DONE):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)

    async def tell_everybody(self, why: str, patience: float, failed: bool) -> None:
        """Ask every node to leave, and wait until they have, at most ``patience`` seconds."""
        self._failed = failed
        everybody = tuple(self._streams)
        self._announcing.send(s.SendStop(everybody, why, failed), everybody)
        self._absent = set(self._deciding.state.nodes) - set(everybody)  # they would try to come back for ever
        deadline = self._context.clock() + min(patience, COME_BACK_S)
        while self._absent and self._context.clock() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._streams.empty.wait(), patience)

    def tell_late(self, stream: Attendance) -> None:
        """A node has opened a stream again; if the run is over, tell it to leave."""
        self._absent.discard(stream.name)
        state = self._deciding.state
        if state.phase == DONE:
            failed = self._failed or self._outcome.failure is not None
            stop = s.SendStop((stream.name,), state.why, failed)
            self._streams.say(order_of(stop, self._context.term), stream)
