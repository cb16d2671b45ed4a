"""Eight members in one process that judge each other: the real stages, exchange, judge and table of judges' words.

``play`` is one run of ``benchmarks/judged.py``. Only the wire, the trainer around a judge and the coordinator around
the table are made up: what a trainer would send goes straight into the table, and whom the table puts out is not in the
next view. Judges' dice have a seed, so that a run can be had again.
"""

from __future__ import annotations

import math
import random
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from farflung.coordinator.membership.faults.judged import LOOK_ROUNDS, Judged, value_of
from farflung.job.data.facts import Facts
from farflung.job.data.sampling import Position, assign, sample_ids
from farflung.job.schema import Job
from farflung.node.data.dataset import Tokens
from farflung.node.models.definition import ModelDefinition
from farflung.node.models.factory import model_of
from farflung.node.rounds.arithmetic.exchange import Exchange
from farflung.node.rounds.checking.judge import Judge, Seat, judge_of
from farflung.node.rounds.protocol.messages import Decide, Part, RoundPlan
from farflung.node.state.optimizers.make_optimizer import make_optimizer
from farflung.node.state.sections.section import Section
from farflung.node.state.stage_state import StageState
from farflung.scheduler import Plan

NAMES = tuple("abcdefgh")
UNEVEN = dict(zip(NAMES, (2, 20, 12, 8, 8, 6, 6, 2), strict=True))
"""Samples of a step that each takes."""
HELD_OUT = 128
SPARE = "spare"
GOOD, BAD = (1.0, 0.0), (-1.0, -1.0)
"""What liars say of each other and of the honest."""


@dataclass(frozen=True)
class Case:
    """What a run is about. ``slander``: liars judge every round of theirs, and say the contrary of what is so."""

    seed: int = 1
    liars: int = 0
    kind: str = ""
    judge: float = 0.05
    spare: bool = False
    slander: bool = False
    uneven: bool = False
    """Members are as fast as ``UNEVEN`` says, and not alike."""
    large: bool = False
    """A model of which a step takes long enough to be compared with what judging takes."""
    rounds: int = 45


@dataclass
class Member:
    name: str
    state: StageState
    exchange: Exchange
    judge: Judge | None = None
    old: list[Tensor] = field(default_factory=list)
    """What a liar had learnt in rounds before."""

    @property
    def section(self) -> Section:
        (section,) = self.state.sections.values()
        return section


class Run:
    def __init__(self, job: Job, facts: Facts, data: Tokens, case: Case) -> None:
        self.job, self.facts, self.data, self.case = job, facts, data, case
        self.definition: ModelDefinition = model_of(job, facts)
        self.optimizer = make_optimizer(job)
        self.table, self.chance = Judged(), random.Random(case.seed)
        self.noise = torch.Generator().manual_seed(case.seed)
        self.kinds = dict.fromkeys(NAMES[len(NAMES) - case.liars :], case.kind)
        self.names: tuple[str, ...] = NAMES
        self.view, self.base, self.position = 0, 0, Position()
        self.out: dict[str, int] = {}
        self.looks: list[tuple[int, str]] = []
        self.said: dict[str, list[tuple[float, float]]] = {}
        self.training_s = self.judging_s = 0.0
        self.spare: Judge | None = None
        self.members: list[Member] = []
        states = {name: self._state(name) for name in NAMES}
        self._begin(0, states)

    def _plan(self) -> Plan:
        count, batch = len(self.names), self.job.train.batch // self.job.train.microbatch
        shares = tuple(batch // count + (i < batch % count) for i in range(count))
        if self.case.uneven:
            given = [UNEVEN[name] for name in self.names]
            shares = (*given[:1], given[1] + batch - sum(given), *given[2:])
        stages = ((0, len(self.definition.layers) - 1),)
        return Plan(pipelines=tuple((name,) for name in self.names), stages=stages, microbatches=shares)

    def _state(self, name: str) -> StageState:
        state = StageState(self.definition, self.job, self._plan(), name, self.optimizer, torch.device("cpu"))
        with torch.no_grad():
            self.definition.initialise(state.models[0], self.job.run.seed)
        parameters = dict(state.models[0].named_parameters())
        for section in state.sections.values():
            section.g.copy_(section.x)
            for parameter, values in section.layout.views(section.grad):
                parameters[parameter].grad = values
        return state

    def _begin(self, number: int, states: dict[str, StageState]) -> None:
        """A view of the members that are left, after round ``number``."""
        self.plan = self._plan()
        self.view, self.base = self.view + 1, number
        interval = self.job.updates.interval
        step = number * interval
        self.position = self.position.after(step, self.job.train.batch)
        (section,) = next(iter(states.values())).sections
        weights = tuple(float(share) for share in self.plan.microbatches)
        length = next(iter(states.values())).sections[section].g.numel()
        rounds = RoundPlan(section, self.names, weights, (Part(0, self.names[0], 0, length),), "all_to_all")
        self.members = []
        for name in self.names:
            exchange = Exchange(states[name].sections[section], rounds, name, self.job.updates.codec, seed=7)
            exchange.section.restart_chain(self.view, number)
            self.members.append(Member(name, states[name], exchange, self._judge(name, states[name], False)))
        self.spare = self._judge(SPARE, states[self.names[0]], True) if self.case.spare else None

    def _judge(self, name: str, state: StageState, spare: bool) -> Judge | None:
        context = SimpleNamespace(name=name, job=self.job, facts=self.facts, view=self.view, device="cpu")
        context.clock = SimpleNamespace(span=lambda *_: nullcontext())
        context.pump = lambda timeout: None
        context.report = lambda report: self.reports.append((name, report.scores))
        seat = Seat(
            cast(Any, context),
            lambda: self.data,
            state,
            self.plan,
            self.position,
            base=self.base,
            last_step=self.case.rounds * self.job.updates.interval,
            spare=spare,
            own_loop=False,
        )
        judge = judge_of(seat)
        if judge is not None:
            judge._dice = cast(Any, random.Random(f"{self.case.seed}/{name}/{self.view}"))
        return judge

    # ---- a round -----------------------------------------------------------------------------

    def round(self, number: int) -> None:
        began = time.process_time()
        interval, train = self.job.updates.interval, self.job.train
        for step in range((number - 1) * interval + 1, number * interval + 1):
            ids = sample_ids(self.position.positions(step, train.batch), self.job.run.seed, self.facts.samples)
            shares = assign(ids, self.plan.microbatches, train.microbatch)
            for member, share in zip(self.members, shares, strict=True):
                if self.kinds.get(member.name) != "copy":  # it is lazy
                    self._local_step(member, step, [ids[one] for one in share])
        self._lie()
        sent = {(0, i): member.exchange.contributions(number)[0] for i, member in enumerate(self.members)}
        offers = tuple((i, one) for (_, i), one in sent.items())
        result, refused = self.members[0].exchange.decide(number, Decide(0, offers))
        assert not refused
        self.training_s += time.process_time() - began

        began, self.reports = time.process_time(), []
        for member in self.members:
            if member.judge is not None:
                member.judge.round(member.exchange, number, (result,), sent)
        self.judging_s += time.process_time() - began
        if self.spare is not None:
            self.spare.round(self.members[0].exchange, number, (result,), sent)

        began = time.process_time()
        for member in self.members:
            exchange = member.exchange
            exchange.apply_delta(exchange.updates(number, {0: result}, sent), (result,))
            member.section.round = number
            if member.name in self.kinds:
                member.section.x.copy_(member.section.g)  # it has no use for what was not counted
        self.training_s += time.process_time() - began
        self._count(number)

    def _local_step(self, member: Member, step: int, ids: list[int]) -> None:
        model, section = member.state.models[0], member.section
        inputs, targets = self.data.batch(ids)
        loss = model.loss_sum(model(inputs), targets) / model.target_count(targets)
        section.grad.zero_()
        torch.autograd.backward(loss)
        section.grad.mul_(min(1.0, 1.0 / float(section.grad.norm())))
        self.optimizer.step(section, step, self.job.train.learning_rate)

    def _lie(self) -> None:
        learnt = {member.name: member.section.x - member.section.g for member in self.members}
        for member in self.members:
            kind, own = self.kinds.get(member.name), learnt[member.name]
            if kind == "sign flip":
                own = -own
            elif kind == "noise":
                noise = torch.randn(own.shape, generator=self.noise)
                own = noise * (own.norm() / noise.norm())
            elif kind == "copy":
                own = learnt[NAMES[0]]
            elif kind in ("stale", "first"):
                member.old = [*member.old, own][-2:] if kind == "stale" else [*member.old, own][:1]
                own = member.old[0]
            if kind:
                member.section.x.copy_(member.section.g + own)

    # ---- what the coordinator does -------------------------------------------------------------

    def _count(self, number: int) -> None:
        reports = {name: {one.node: (one.own, one.held) for one in said.scores} for name, said in self.reports}
        if self.case.slander:
            everybody = {name: GOOD if name in self.kinds else BAD for name in self.names}
            reports |= {liar: everybody for liar in self.kinds if liar in self.names}
        for by, said in reports.items():
            if by not in self.kinds:
                for name, one in said.items():
                    self.said.setdefault(name, []).append(one)
            for finding in self.table.count(by, self.names, (self.view, number), number, said) or ():
                if finding.look:
                    self.looks.append((number, finding.look))
                    for member in self.members:
                        if member.judge is not None:
                            member.judge.look(finding.look, LOOK_ROUNDS)
                    if self.spare is not None:
                        self.spare.look(finding.look, LOOK_ROUNDS)
                elif finding.out in self.names:
                    self.out[finding.out] = number
                    self.names = tuple(name for name in self.names if name != finding.out)
        if len(self.names) < len(self.members):
            old = {member.name: member.old for member in self.members}
            self._begin(number, {one.name: one.state for one in self.members if one.name in self.names})
            for member in self.members:
                member.old = old[member.name]

    def held_out(self) -> float:
        state, model = self.members[0].state, self.members[0].state.models[0]
        state.use_reference()
        with torch.no_grad():
            inputs, targets = self.data.batch(range(self.facts.samples, self.facts.samples + HELD_OUT))
            loss = float(model.loss_sum(model(inputs), targets)) / model.target_count(targets)
        state.use_local()
        return loss


def play(job: Job, facts: Facts, data: Tokens, case: Case) -> dict[str, Any]:
    run = Run(job, facts, data, case)
    for number in range(1, case.rounds + 1):
        run.round(number)
    loss = run.held_out()
    return {
        "loss": round(loss, 4) if math.isfinite(loss) else None,
        "out": run.out,
        "honest_out": sorted(name for name in run.out if name not in run.kinds),
        "looks": run.looks,
        "score": {name: round(sum(value_of(*one) for one in some) / len(some), 2) for name, some in run.said.items()},
        "scores": sum(len(some) for some in run.said.values()),
        "training_s": round(run.training_s, 2),
        "judging_s": round(run.judging_s, 3),
    }
