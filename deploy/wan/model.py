"""The arithmetic of a link: a queue that drops its tail, a line that delays, losses. Pure; the clock is an argument.

Times are seconds on one monotonic clock, sizes bytes on the wire. A packet of several TCP segments (GSO) is charged and
dropped segment by segment, as the wire would.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from .topology import FRAME, Link, Topology

NEVER = 1 << 62


class Pipe:
    """A rate with a drop-tail queue in front of it (an uplink, a downlink, or the narrow point of a pair)."""

    __slots__ = ("free", "per_byte", "queue")

    def __init__(self, rate: float | None, queue_ms: float) -> None:
        self.free = 0.0  # when the last accepted byte will have left
        self.set(rate, queue_ms)

    def set(self, rate: float | None, queue_ms: float) -> None:
        """Change the rate (bit/s, None: infinite). At least two full packets always fit the queue."""
        self.per_byte = 0.0 if rate is None else 8.0 / rate
        self.queue = max(queue_ms / 1e3, 2 * FRAME * self.per_byte)

    def busy(self, now: float) -> bool:
        """Whether what arrives now may have to wait."""
        return self.per_byte > 0 or self.free > now

    def admit(self, now: float, segment: int, count: int) -> tuple[int, float]:
        """Of `count` segments of `segment` bytes, how many fit the queue, and when the last of those has left."""
        start = self.free if self.free > now else now
        if not self.per_byte:
            return count, start  # after packets that a former rate has delayed
        each = segment * self.per_byte
        if start - now + each * count > self.queue:
            count = min(count, max(0, int((self.queue - (start - now)) / each + 1e-9)))
            if not count:
                return 0, start
        self.free = start + each * count
        return count, self.free


class Line:
    """One direction of one pair: the pair's pipe, then delay and jitter (in order, never overtaking), then loss."""

    __slots__ = ("cut", "delay", "drops", "jitter", "last", "loss", "lost", "pipe", "random", "until_loss")

    def __init__(self, link: Link, seed: str) -> None:
        self.random = random.Random(seed)
        self.pipe = Pipe(link.rate, link.queue_ms)
        self.last = 0.0
        self.drops = 0  # segments that found the queue full
        self.lost = 0  # segments that the link lost
        self.set(link)

    def set(self, link: Link) -> None:
        """Take over new figures; what is in flight keeps its time."""
        self.pipe.set(link.rate, link.queue_ms)
        self.delay = link.delay_ms / 1e3
        self.jitter = link.jitter_ms / 1e3
        self.loss = link.loss
        self.cut = link.cut
        self.until_loss = self._gap()

    def _gap(self) -> int:
        """The number of segments that arrive before the next is lost (geometric distribution)."""
        if self.loss <= 0:
            return NEVER
        if self.loss >= 1:
            return 0
        return int(math.log(1 - self.random.random()) / math.log1p(-self.loss))

    def arrival(self, left: float) -> float:
        """The time at which a packet that left the narrow point at `left` arrives at the other end."""
        due = left + self.delay
        if self.jitter:
            due += max(-self.delay, self.random.gauss(0.0, self.jitter))
        if due < self.last:
            due = self.last
        self.last = due
        return due

    def losses(self, count: int) -> Sequence[int]:
        """Which of the next `count` segments are lost."""
        if count <= self.until_loss:
            self.until_loss -= count
            return ()
        found = []
        at = self.until_loss
        while at < count:
            found.append(at)
            at += 1 + self._gap()
        self.until_loss = at - count
        self.lost += len(found)
        return found


class Model:
    """All queues of a WAN. `enter` decides about a packet at its sender, `leave` at its receiver."""

    def __init__(self, topology: Topology) -> None:
        n = len(topology.hosts)
        links = topology.links
        self.wait = [max([v.queue_ms for (a, b), v in links.items() if i in (a, b)], default=100.0) for i in range(n)]
        self.up = [Pipe(h.uplink, self.wait[i]) for i, h in enumerate(topology.hosts)]
        self.down = [Pipe(h.downlink, self.wait[i]) for i, h in enumerate(topology.hosts)]
        self.down_drops = [0] * n
        seed = topology.seed
        self.lines = [[Line(links.get((i, j), Link()), f"{seed}/{i}/{j}") for j in range(n)] for i in range(n)]

    def set_host(self, i: int, uplink: float | None, downlink: float | None) -> None:
        """Change host i's uplink and downlink, which all its flows share (bit/s, None: infinite)."""
        self.up[i].set(uplink, self.wait[i])
        self.down[i].set(downlink, self.wait[i])

    def enter(self, i: int, j: int, now: float, segment: int, count: int) -> tuple[int, Sequence[int], float]:
        """A packet of `count` segments from host i to host j: (segments that get through the queues, those of them
        that are lost on the way, when the rest arrives)."""
        line = self.lines[i][j]
        if line.cut:
            line.lost += count
            return 0, (), now
        kept, left = self.up[i].admit(now, segment, count)
        if kept:
            kept, left = line.pipe.admit(left, segment, kept)
        line.drops += count - kept
        if not kept:
            return 0, (), now
        return kept, line.losses(kept), line.arrival(left)

    def leave(self, j: int, now: float, segment: int, count: int) -> tuple[int, float]:
        """A packet has arrived at host j's downlink: (segments that fit its queue, when the last is through)."""
        kept, through = self.down[j].admit(now, segment, count)
        self.down_drops[j] += count - kept
        return kept, through
