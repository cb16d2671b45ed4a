"""Modes without agreed rounds: a node mixes its weights only with its neighbours', and all nodes' weights differ.

``gossip`` is decentralised SGD (Lian et al., 2017) on a ring, as in Bagua: in every round a node waits for its
neighbours' weights and moves towards them. Weights travel as encoded differences from what the neighbour knows already
(Koloskova et al., CHOCO-SGD, 2019), so that a lossy codec loses nothing permanently. ``async`` does the same without
waiting: a round uses what has arrived since the last one (asynchronous averaging, after Lian et al., AD-PSGD, 2018).

When common weights are needed (evaluations, checkpoints, the end), the members compute a plain average of all in an
agreed round. ``g`` is the newest of these averages, and the start of the differences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from .... import compress
from ....proto import data_pb2
from ...rounds.arithmetic.outliers import FACTOR
from ...rounds.protocol.messages import Contribution
from ...rounds.protocol.payloads import Refused, contribution_of, pieces_of, received
from ...state.sections.section import Section
from ..member.view_member import ViewMember
from .delta_mode import DeltaMode
from .mixing import Mixing, neighbours_of, segments_of

MOST_GIVEN = 3
"""How often a member is given a section's whole weights in one view; a new member needs them once."""


class UnagreedMode(DeltaMode):
    """Local steps, mixing every ``every`` steps, and a plain average of all when common weights are needed."""

    def __init__(self, view: ViewMember) -> None:
        super().__init__(view)
        updates = view.job.updates
        waits = updates.pattern == "gossip"
        self.mixings: dict[str, Mixing] = {}
        self._mix_at = 0
        self._given: dict[tuple[str, str], int] = {}
        """(member, section) -> how often the member was given the section's weights."""
        self._lacking: dict[str, list[str]] = {}
        """Section with parameters that are new to this node -> members that it can ask for their weights; the first one
        is being asked."""
        for name, link in view.links.items():
            plan, me = link.rounds.plan, view.context.name
            near = neighbours_of(plan.members, plan.weights, me)
            section, seed = view.state.sections[name], view.job.run.seed
            self.mixings[name] = Mixing(section, near, plan.members, me, updates.codec, seed=seed, waits=waits)
            if view.state.lacking & set(section.layout.names):
                others = [one for one in plan.members if one != me]
                self._lacking[name] = [*near, *(one for one in others if one not in near)]

    def begin(self) -> None:
        """A node that is new in its group takes the weights of a member that is not, and asks its neighbours first,
        because the last average may be old. If all are new, they begin with the last average."""
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
        view.agree(step, math.fsum(view.squares().values()))
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
        """Compute a plain average of all; at the run's end all members take it as their weights."""
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
        """Handle a message of another member. Refused, or CodecError: it is not valid."""
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
            self._lacking[name].pop(0)  # it is new itself, or sent invalid bytes: ask the next member
            self._ask(name)
            if problem is not None:
                raise problem

    def _take(self, section: Section, payload: memoryview, sizes: Sequence[int]) -> None:
        """Take another member's weights, as differences from the last average, for the parameters that are new here."""
        pairs = list(zip(pieces_of(payload, sizes), segments_of(section.layout.numel), strict=True))
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
        """Send this node's weights, as differences from the last average; an empty message if it is new itself."""
        if name in self._lacking:
            self._send(to, name, data_pb2.WEIGHTS)
            return
        if self._given.get((to, name), 0) >= MOST_GIVEN:
            raise Refused(to, f"it wants the weights of {name} a {MOST_GIVEN + 1}th time in one view")
        self._given[to, name] = self._given.get((to, name), 0) + 1
        section = self.mixings[name].section
        codec = compress.make("none")
        places = segments_of(section.layout.numel)
        blobs = [codec.encode(section.x[here] - section.g[here], seed=0, step=0, rank=0) for here in places]
        self._send(to, name, data_pb2.WEIGHTS, contribution_of(blobs))

    def end(self) -> None:
        super().end()
        self._mix_at = 0
