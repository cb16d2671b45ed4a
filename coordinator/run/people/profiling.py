"""One `farflung profile`: asks the nodes that train to record their next steps, and reads their clocks meanwhile."""

from __future__ import annotations

import asyncio
import hashlib
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from ....proto import control_pb2 as pb
from ....proto.messages.trace import MOST_BYTES, BadTrace, unpack
from ...checkpoints.refused import ShardRefused

FILE = "trace/"
PAUSE_S = 0.25
"""Seconds between two readings of each node's clock."""
LEAST_S, UPLOAD_S = 30.0, 30.0
AHEAD_S = 2.0
"""Seconds to the first recorded step, so that every node hears of it before."""
MOST_AHEAD = 1000

Tell = Callable[[str, pb.Order], None]
"""``tell(node, order)``"""


@dataclass(frozen=True)
class Clock:
    """How far a node's clock is ahead of the coordinator's, and the largest error of that; both in seconds."""

    offset: float = 0.0
    error: float = math.inf

    def seen(self, asked: float, heard: float, there: float) -> Clock:
        """The estimate after one more answer: the node's clock was at ``there`` at some time between ``asked`` and
        ``heard`` of the coordinator's."""
        error = (heard - asked) / 2
        return Clock(there - (asked + heard) / 2, error) if error < self.error else self


def first_step(last: int, seconds: float) -> int:
    """The first step to record after ``last``; ``seconds``: of a step."""
    return last + 2 + min(MOST_AHEAD, math.ceil(AHEAD_S / max(seconds, 1e-3)))


class Profiling:
    """From the request to the last node's trace. Lives on the coordinator's event loop."""

    def __init__(self, nodes: Mapping[str, str], steps: int, last: int, seconds: float, tell: Tell) -> None:
        """``nodes``: name -> session of those that train; ``last``: step that is done; ``seconds``: of a step."""
        self.id = secrets.token_hex(4)
        first = first_step(last, seconds)
        self.patience = LEAST_S + 5 * seconds * (first - last + steps)
        self._first, self._steps, self._tell = first, steps, tell
        self._waiting = dict(nodes)
        self._clocks = dict.fromkeys(nodes, Clock())
        self._asked: dict[tuple[str, int], float] = {}
        self._number = 0
        self._parts: asyncio.Queue[pb.ProfilePart] = asyncio.Queue()

    def wants(self, name: str, file: str) -> bool:
        """Whether this node is expected to send this file."""
        return name in self._waiting and file == FILE + self.id

    def answered(self, name: str, answer: pb.ClockAnswer) -> None:
        """A node has read its clock."""
        asked = self._asked.pop((name, answer.number), None)
        if asked is not None and math.isfinite(answer.monotonic):
            self._clocks[name] = self._clocks[name].seen(asked, time.monotonic(), answer.monotonic)

    def gone(self, name: str, session: str, why: str) -> None:
        """A node's stream has ended."""
        if self._waiting.get(name) == session:
            self.missing(name, f"it left meanwhile: {why}")

    def missing(self, name: str, why: str) -> None:
        """There will be no trace of this node."""
        if self._waiting.pop(name, None) is not None:
            self._parts.put_nowait(pb.ProfilePart(node=name, missing=why))

    def took(self, name: str, trace: bytes) -> None:
        """A node's trace, which has been checked."""
        clock = self._clocks.get(name, Clock())
        if not math.isfinite(clock.error):
            self.missing(name, "it did not tell its clock")
        elif self._waiting.pop(name, None) is not None:
            self._parts.put_nowait(pb.ProfilePart(node=name, trace=trace, offset=clock.offset, error=clock.error))

    async def parts(self) -> AsyncIterator[pb.ProfilePart]:
        """What to tell the person who asked, as it comes; a part for each node."""
        begun = time.monotonic()
        order = pb.Trace(id=self.id, first=self._first, steps=self._steps, seconds=self.patience)
        who = ", ".join(self._waiting)
        yield pb.ProfilePart(told=f"{who}: {self._steps} steps from step {self._first} on")
        for name in list(self._waiting):
            self._tell(name, pb.Order(trace=order))
        while self._waiting or not self._parts.empty():
            for name in self._waiting:
                self._number += 1
                self._asked[name, self._number] = time.monotonic()
                self._tell(name, pb.Order(clock=pb.ClockAsk(number=self._number)))
            try:
                yield await asyncio.wait_for(self._parts.get(), PAUSE_S)
            except (TimeoutError, asyncio.TimeoutError):
                if time.monotonic() - begun > self.patience + UPLOAD_S:
                    for name in list(self._waiting):
                        self.missing(name, f"no trace within {self.patience + UPLOAD_S:.0f} s")


async def received(first: pb.Shard, rest: AsyncIterator[pb.Shard]) -> bytes:
    """A node's trace from the stream that stores it, checked. ShardRefused says what is wrong with it."""
    data, shard = bytearray(first.data), first
    while not shard.last:
        try:
            shard = await anext(rest)
        except StopAsyncIteration:
            raise ShardRefused("the stream ended before the trace did") from None
        if shard.offset != len(data):
            raise ShardRefused(f"bytes of {shard.offset} where {len(data)} comes next")
        data += shard.data
        if len(data) > MOST_BYTES:
            raise ShardRefused(f"more than {MOST_BYTES} bytes")
    if hashlib.sha256(data).digest() != shard.digest:
        raise ShardRefused("its digest is another")
    try:
        await asyncio.to_thread(unpack, bytes(data))
    except BadTrace as problem:
        raise ShardRefused(problem.message) from None
    return bytes(data)
