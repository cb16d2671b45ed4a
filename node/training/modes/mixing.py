"""What a member makes of its neighbours' weights, in rounds without agreement: it neither waits nor sends."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from functools import lru_cache

import torch
import xxhash

from .... import compress
from ...rounds.arithmetic.outliers import Norms
from ...rounds.protocol.messages import Contribution
from ...rounds.protocol.payloads import SEGMENT, Refused, contribution_of, pieces_of
from ...state.sections.section import Section

MOST_EARLY = 64
"""Differences of one neighbour that wait here until this node is as far as it."""


def neighbours_of(members: Sequence[str], weights: Sequence[float], me: str) -> dict[str, float]:
    """How far a member moves towards each of its neighbours on the ring of members.

    Metropolis' rule: p_i w_ij = p_j w_ji, so mixing keeps the sum of p_i x_i and ends at the average by weight.
    """
    at, count = members.index(me), len(members)
    near = dict.fromkeys(place for place in ((at - 1) % count, (at + 1) % count) if place != at)
    return {members[i]: min(1.0, weights[i] / weights[at]) / (1 + len(near)) for i in near}


@lru_cache
def contraction(codec: str) -> float:
    """The part of a normal vector's square that the codec keeps, from 0.01 to 1: how boldly one may mix with it."""
    values = torch.randn(1 << 14, generator=torch.Generator().manual_seed(1))
    rest = values.clone()
    compress.add(compress.make(codec).encode(values, seed=1, step=1, rank=0), rest, -1.0)
    return min(1.0, max(0.01, 1.0 - float(rest.square().sum() / values.square().sum())))


class Mixing:
    """What one member of a section knows of its neighbours, and what it makes of it. It neither waits nor sends.

    public: what the neighbours know of this node, fp32 [numel]; known: the same of each of them. Both ends of a link
    add the same differences, so they agree on them.
    """

    def __init__(
        self,
        section: Section,
        near: dict[str, float],
        members: Sequence[str],
        me: str,
        codec: str,
        *,
        seed: int,
        waits: bool,
    ) -> None:
        self.section, self.near, self.waits = section, near, waits
        self.members, self.me = members, members.index(me)
        self.seed = xxhash.xxh3_64_intdigest(f"{seed}/{section.layout.section}/mixing".encode()) >> 1
        self.codec, self.pace = compress.make(codec), contraction(codec)
        self.dense = compress.make("none")
        self.norms = Norms()
        self.begun = False
        """Whether the view's first difference has gone: it goes whole, for what a member brings with it may be far."""
        self._early: dict[str, deque[tuple[int, int, Contribution]]] = {name: deque() for name in near}
        self.complaints: list[Refused] = []
        """Neighbours that sent nonsense, and are not followed until the next average."""
        self._silent: set[tuple[str, int]] = set()
        self.reset()

    def reset(self) -> None:
        """A plain average is applied (or the view begins): everybody is known by it."""
        self.epoch, self.number = self.section.round, 0
        self.public = self.section.g.clone()
        self.known = {name: self.section.g.clone() for name in self.near}
        self._taken = dict.fromkeys(self.near, 0)
        self._news: set[str] = set()
        self._silent = {(name, epoch) for name, epoch in self._silent if epoch >= self.epoch}
        for name, waiting in self._early.items():
            self._early[name] = deque(one for one in waiting if one[0] >= self.epoch)
            while not self.waits and self._take(name):
                pass

    def difference(self) -> Contribution:
        """What the neighbours do not know yet of x, encoded; from here on they know it.

        Raises:
            compress.CodecError: if x is not finite.
        """
        self.number += 1
        codec = self.codec if self.begun else self.dense
        self.begun = True
        blobs = []
        for here in segments_of(self.section.layout.numel):
            values = self.section.x[here] - self.public[here]
            seed = (self.seed + 0x9E3779B9 * here.start) & (2**63 - 1)
            step = self.epoch * 1_000_003 + self.number
            blobs.append(codec.encode(values, seed=seed, step=step, rank=self.me))
            compress.add(blobs[-1], self.public[here])
        return contribution_of(blobs)

    def receive(self, sender: str, epoch: int, number: int, sent: Contribution) -> None:
        """A neighbour's ``number``-th difference since average ``epoch``. Refused: it follows none."""
        if sender not in self.near:
            raise Refused(sender, f"{sender} is no neighbour in {self.section.layout.section}")
        waiting = self._early[sender]
        if epoch < self.epoch or (sender, epoch) in self._silent:
            return
        since, last = waiting[-1][:2] if waiting else (self.epoch, self._taken[sender])
        follows = number == last + 1 if epoch == since else epoch > since and number == 1
        if not follows or len(waiting) == MOST_EARLY:
            self._silence(sender, epoch)
            if follows:
                return  # this node is far behind: it does without
            raise Refused(sender, f"difference {number} after average {epoch} does not follow {last} after {since}")
        waiting.append((epoch, number, sent))
        while not self.waits and self._take(sender):
            pass

    def _silence(self, sender: str, epoch: int) -> None:
        """What it sends is not followed any more until the average after ``epoch``."""
        self._silent.add((sender, epoch))
        self._early[sender] = deque(one for one in self._early[sender] if one[0] != epoch)

    def _take(self, sender: str) -> bool:
        """The next difference of a neighbour is known from here on. False: it is not here yet."""
        waiting = self._early[sender]
        if not waiting or waiting[0][0] != self.epoch:
            return False
        _, number, sent = waiting.popleft()
        self._taken[sender] = number
        known, norm = self.known[sender], 0.0
        try:
            places = segments_of(known.numel())
            blobs = list(pieces_of(sent.payload, sent.sizes))
            if len(blobs) != len(places):
                raise compress.CodecError(f"{len(blobs)} pieces where there are {len(places)}")
            norm = math.hypot(
                *(compress.norm(b, p.stop - p.start, known.device) for b, p in zip(blobs, places, strict=True))
            )
            own = float(torch.linalg.vector_norm(self.section.x - self.section.g))
            limit = self.norms.absurd_result(self.members.index(sender), norm, own)
            if limit:
                raise compress.CodecError(f"an absurd norm: {norm:.3g}, more than {limit:.3g}")
        except compress.CodecError as problem:
            self._silence(sender, self.epoch)
            self.complaints.append(Refused(sender, f"a difference that makes no sense: {problem}"))
            return True
        for blob, place in zip(blobs, places, strict=True):
            compress.add(blob, known[place])
        self._news.add(sender)
        return True

    def ready(self) -> bool:
        """Whether every neighbour that is waited for has sent its part of this round."""
        return not self.late()

    def late(self) -> list[str]:
        """Neighbours that are waited for and have not."""
        here = ((name, bool(waiting and waiting[0][0] == self.epoch)) for name, waiting in self._early.items())
        return [name for name, came in here if self.waits and not came and (name, self.epoch) not in self._silent]

    def mix(self) -> None:
        """x moves towards the neighbours that have said something since the last time."""
        for name in self.near if self.waits else ():
            self._take(name)
        for name in sorted(name for name in self._news if (name, self.epoch) not in self._silent):
            self.section.x.add_((self.known[name] - self.public) * (self.pace * self.near[name]))
        self._news = set()


def segments_of(numel: int) -> list[slice]:
    """The pieces that are encoded one by one."""
    return [slice(start, min(start + SEGMENT, numel)) for start in range(0, numel, SEGMENT)]
