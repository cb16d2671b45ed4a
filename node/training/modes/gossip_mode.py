"""Rounds without agreement: a node mixes its weights with its neighbours' alone, and no two nodes hold the same ones.

``gossip`` is decentralised SGD (Lian et al., 2017) on a ring, as in Bagua: every round a node waits for its neighbours'
weights and moves towards them. They travel as encoded differences to what the neighbour knows already (Koloskova et
al., CHOCO-SGD, 2019), so that a lossy codec loses nothing for good. ``async`` does the same without waiting: a round
takes what has arrived since the last one (asynchronous averaging, after Lian et al., AD-PSGD, 2018).

Where common weights are needed (evaluations, checkpoints, the end) the members take a plain average of all in an agreed
round; ``g`` is the newest of these, and everybody knows everybody's weights by it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from .... import compress
from ....proto import data_pb2
from ...rounds.arithmetic.outliers import FACTOR, Norms
from ...rounds.protocol.messages import Contribution
from ...rounds.protocol.payloads import SEGMENT, Refused, contribution_of, pieces_of, received
from ...state.optimizers.optimizers import squared_norm
from ...state.sections.section import Section
from ..member.view_member import ViewMember
from .modes import DeltaMode

MOST_EARLY = 64
"""Differences of one neighbour that wait here until this node is as far as it."""
MOST_GIVEN = 3
"""Times that a member is given a section's whole weights in one view: who is new needs them once."""


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
        for here in _segments(self.section.layout.numel):
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
            places = _segments(known.numel())
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


class UnagreedMode(DeltaMode):
    """Local steps, mixing every ``every`` steps, and a plain average of all where common weights are needed."""

    def __init__(self, view: ViewMember) -> None:
        super().__init__(view)
        updates = view.job.updates
        waits = updates.pattern == "gossip"
        self.mixings: dict[str, Mixing] = {}
        self._mix_at = 0
        self._given: dict[tuple[str, str], int] = {}
        """How often a member was given the weights of a section."""
        self._lacking: dict[str, list[str]] = {}
        """Sections of which this node has parameters that are new to it, and whom it can still ask for their weights,
        the first of them now."""
        for name, link in view.links.items():
            plan, me = link.rounds.plan, view.context.name
            near = neighbours_of(plan.members, plan.weights, me)
            section, seed = view.state.sections[name], view.job.run.seed
            self.mixings[name] = Mixing(section, near, plan.members, me, updates.codec, seed=seed, waits=waits)
            if view.state.lacking & set(section.layout.names):
                others = [one for one in plan.members if one != me]
                self._lacking[name] = [*near, *(one for one in others if one not in near)]

    def begin(self) -> None:
        """A node that is new in its group takes the weights of a member that is not, its neighbours first; the last
        average may be long ago. Where nobody is old all begin at that average, or with what they have of it."""
        for name in sorted(self._lacking):
            self._ask(name)
        self.view.wait(
            lambda: not self._lacking,
            "wait for weights",
            lambda: {asked[0] for asked in self._lacking.values() if asked},
        )
        self.view.state.lacking = frozenset()

    def _ask(self, name: str) -> None:
        if self._lacking[name]:
            self._send(self._lacking[name][0], name, data_pb2.WEIGHTS_REQUEST)
        else:
            del self._lacking[name]

    def finish(self, step: int) -> None:
        """A local step; then, every ``every`` steps, mixing, which is applied ``overlap`` steps later."""
        view = self.view
        view.agree(step, sum(squared_norm(section.grad) for section in view.state.sections.values()))
        if self._mix_at and step >= self._mix_at:
            self._mix()
        self._local_step(step, view.commit.norm)
        if self._free or view.is_due(step):
            if self._mix_at:
                self._mix()
            self._flush(1)
        elif step % self._interval == 0:
            for name, mixing in self.mixings.items():
                with view.context.clock.coding("encode", name):
                    sent = mixing.difference()
                for to in mixing.near:
                    self._send(to, name, data_pb2.DIFFERENCE, sent)
            self._mix_at = step + self._overlap
            if not self._overlap:
                self._mix()

    def _mix(self) -> None:
        mixings = self.mixings.values()
        self.view.wait(
            lambda: all(mixing.ready() for mixing in mixings),
            "wait for neighbours",
            lambda: {name for mixing in mixings for name in mixing.late()},
        )
        with self.view.context.clock.coding("mix"):
            for mixing in self.mixings.values():
                mixing.mix()
        self._mix_at = 0
        self._complain()

    def _complain(self) -> None:
        for mixing in self.mixings.values():
            while mixing.complaints:
                problem = mixing.complaints.pop()
                self.view.context.refuse(problem.member, problem.why)

    def _flush(self, rounds: int) -> None:
        """A plain average of all; at the run's end everybody's weights."""
        super()._flush(rounds)
        for mixing in self.mixings.values():
            mixing.reset()
        if self.view.step >= self.view.last_step:
            for section in self.view.state.sections.values():
                section.adopt()

    def _send(self, to: str, section: str, kind: data_pb2.Kind, sent: Contribution | None = None) -> None:
        mixing = self.mixings[section]
        body = data_pb2.Mixing(section=section, epoch=mixing.epoch, number=mixing.number)
        if sent is not None:
            body.sizes.extend(sent.sizes)
        self.view.send_round(to, data_pb2.Header(kind=kind, mixing=body), () if sent is None else sent.payload)

    def handle(self, sender: str, header: data_pb2.Header, payload: npt.NDArray[np.uint8]) -> None:
        """A message of another member. Refused, or CodecError: it makes no sense."""
        body = header.mixing
        mixing, name = self.mixings.get(body.section), body.section
        if mixing is None or sender not in mixing.members:
            raise Refused(sender, f"{sender} is no member of {name}")
        if header.kind == data_pb2.WEIGHTS_REQUEST:
            self._give(sender, name)
        elif header.kind == data_pb2.DIFFERENCE:
            mixing.receive(sender, body.epoch, body.number, received(payload.data, body.sizes))
            self._complain()
        elif self._lacking.get(name, [""])[:1] == [sender]:
            problem: Exception | None = None
            if body.sizes:
                try:
                    self._take(mixing.section, payload.data, body.sizes)
                except (compress.CodecError, ValueError) as wrong:
                    problem = wrong
                else:
                    del self._lacking[name]
                    return
            self._lacking[name].pop(0)  # it is new itself, or what it sends is nonsense: another one has weights too
            self._ask(name)
            if problem is not None:
                raise problem

    def _take(self, section: Section, payload: memoryview, sizes: Sequence[int]) -> None:
        """Another member's distance from the last average, of the parameters that are new here."""
        pairs = list(zip(pieces_of(payload, sizes), _segments(section.layout.numel), strict=True))
        # CodecError before anything is changed
        norm = math.hypot(*(compress.norm(blob, here.stop - here.start, section.x.device) for blob, here in pairs))
        limit = FACTOR * float(torch.linalg.vector_norm(section.g))
        if norm > limit > 0:
            raise compress.CodecError(f"an absurd norm: {norm:.3g}, more than {limit:.3g}")
        came = torch.zeros_like(section.x)
        for blob, here in pairs:
            compress.add(blob, came[here])
        weights = dict(section.layout.views(section.x))
        for parameter, values in section.layout.views(came):
            if parameter in self.view.state.lacking:
                weights[parameter].add_(values)

    def _give(self, to: str, name: str) -> None:
        """This node's weights, as their distance from the last average; nothing where it is new itself."""
        if name in self._lacking:
            self._send(to, name, data_pb2.WEIGHTS)
            return
        if self._given.get((to, name), 0) >= MOST_GIVEN:
            raise Refused(to, f"it wants the weights of {name} a {MOST_GIVEN + 1}th time in one view")
        self._given[to, name] = self._given.get((to, name), 0) + 1
        section = self.mixings[name].section
        codec = compress.make("none")
        places = _segments(section.layout.numel)
        blobs = [codec.encode(section.x[here] - section.g[here], seed=0, step=0, rank=0) for here in places]
        self._send(to, name, data_pb2.WEIGHTS, contribution_of(blobs))

    def end(self) -> None:
        super().end()
        self._mix_at = 0


def _segments(numel: int) -> list[slice]:
    """The pieces that are encoded one by one."""
    return [slice(start, min(start + SEGMENT, numel)) for start in range(0, numel, SEGMENT)]
