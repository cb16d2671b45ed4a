"""The arithmetic of mixing weights with neighbours, in modes without agreed rounds: it neither waits nor sends."""

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
"""The most differences of one neighbour that wait here until this node has reached the same average."""


def neighbours_of(members: Sequence[str], weights: Sequence[float], me: str) -> dict[str, float]:
    """Neighbour on the ring of members -> the weight w with which ``me`` moves towards it.

    Metropolis' rule: p_i w_ij = p_j w_ji, so mixing preserves the sum of p_i x_i and converges to the weighted average.
    """
    at, count = members.index(me), len(members)
    near = dict.fromkeys(place for place in ((at - 1) % count, (at + 1) % count) if place != at)
    return {members[i]: min(1.0, weights[i] / weights[at]) / (1 + len(near)) for i in near}


@lru_cache
def contraction(codec: str) -> float:
    """The fraction of a normal vector's squared norm that the codec keeps, from 0.01 to 1; it limits the mixing
    rate."""
    values = torch.randn(1 << 14, generator=torch.Generator().manual_seed(1))
    rest = values.clone()
    compress.add(compress.make(codec).encode(values, seed=1, step=1, rank=0), rest, -1.0)
    return min(1.0, max(0.01, 1.0 - float(rest.square().sum() / values.square().sum())))


class Mixing:
    """One member's mixing in a section. It neither waits nor sends.

    public: the neighbours' copy of this node's x, fp32 [numel]; known: this node's copy of each neighbour's x. Both
    ends of a link add the same differences, so the copies are equal.
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
        """Whether the view's first difference has been sent; it is sent uncompressed, because it may be large."""
        self._early: dict[str, deque[tuple[int, int, Contribution]]] = {name: deque() for name in near}
        self.complaints: list[Refused] = []
        """(neighbour, average) of neighbours that sent invalid differences; they are ignored until the next average."""
        self._silent: set[tuple[str, int]] = set()
        self.reset()

    def reset(self) -> None:
        """A plain average is applied (or the view begins): all copies are set to it."""
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
        """The encoded difference of x from the neighbours' copy; it is added to ``public``.

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
        """A neighbour's ``number``-th difference since average ``epoch``. Refused: it is not the next one."""
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
                return  # this node is far behind: ignore the difference
            raise Refused(sender, f"difference {number} after average {epoch} does not follow {last} after {since}")
        waiting.append((epoch, number, sent))
        while not self.waits and self._take(sender):
            pass

    def _silence(self, sender: str, epoch: int) -> None:
        """Ignore the differences of ``sender`` until the average after ``epoch``."""
        self._silent.add((sender, epoch))
        self._early[sender] = deque(one for one in self._early[sender] if one[0] != epoch)

    def _take(self, sender: str) -> bool:
        """Add the next difference of a neighbour to its copy. False: it has not arrived."""
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
        """Neighbours that this node waits for and whose difference has not arrived."""
        here = ((name, bool(waiting and waiting[0][0] == self.epoch)) for name, waiting in self._early.items())
        return [name for name, came in here if self.waits and not came and (name, self.epoch) not in self._silent]

    def mix(self) -> None:
        """Move x towards the neighbours from which a difference has come since the last mixing."""
        for name in self.near if self.waits else ():
            self._take(name)
        for name in sorted(name for name in self._news if (name, self.epoch) not in self._silent):
            self.section.x.add_((self.known[name] - self.public) * (self.pace * self.near[name]))
        self._news = set()


def segments_of(numel: int) -> list[slice]:
    """The segments of a vector of ``numel`` elements."""
    return [slice(start, min(start + SEGMENT, numel)) for start in range(0, numel, SEGMENT)]
