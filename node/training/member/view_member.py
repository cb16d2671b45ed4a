"""A node as a member of one view: its state there, the rounds of its sections, and the commit point of steps.

A mode (modes/) decides what happens at a step's end; view_training.py computes the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ....job.data.facts import Facts
from ....job.data.sampling import Position
from ....job.schema import Job, Updates
from ....proto import data_pb2
from ....proto.words.sections import stages_of
from ....scheduler import Plan
from ...context import ROUND, URGENT, NodeContext
from ...pipeline.inside.island_rounds import IslandRounds
from ...rounds.arithmetic.exchange import Exchange
from ...rounds.checking.judge import Seat, cannot_judge, judge_of
from ...rounds.checking.signed import Signer
from ...rounds.checking.spoilers import spoilers_of
from ...rounds.exchanges import exchange_of
from ...rounds.log import RoundLog
from ...rounds.protocol.machine import Rounds
from ...rounds.protocol.messages import Result
from ...rounds.protocol.outlet import Outlet
from ...rounds.round_link import RoundLink
from ...state.optimizers.learning_rates import learning_rate
from ...state.optimizers.optimizers import Optimizer, clip_factor, squares_of, step_all
from ...state.stage_state import StageState
from ..resources import Resources
from ..say_again import SayAgain
from ..waiting import Peers
from .commit import Commit

COMMIT_KINDS = {data_pb2.READY, data_pb2.COMMIT}


@dataclass(frozen=True)
class ViewStart:
    """Where training begins in a view, and what is due at its beginning."""

    plan: Plan
    position: Position
    save: bool = False
    """Whether a checkpoint is due that the view before did not make; it is made when g has all that was trained before
    this view."""
    evaluate: bool = False
    """Whether an evaluation is due that the view before did not make; this view begins with it. In modes without agreed
    rounds there are no common weights at the beginning, so it is made after the first step."""
    followed: frozenset[int] = frozenset()
    """Stages that spares follow."""
    signer: Signer | None = None
    """Signs this node's contributions in this view; None: the run has no TLS."""


class ViewMember:
    """One node's membership in one view. It does not compute samples or decide how a step ends."""

    def __init__(self, context: NodeContext, resources: Resources, state: StageState, start: ViewStart) -> None:
        job, plan, position = context.job, start.plan, start.position
        self.context, self.resources, self.state = context, resources, state
        self.job, self.plan, self.position = job, plan, position
        self.gradient = job.updates.mode == "gradient"
        self.pipeline = plan.pipeline_of(context.name)
        self.step = position.step
        """The last step that is finished here."""
        self.ready_step = position.step
        """The last step that this node was ready to commit."""
        self.passed = position.step
        """The last step whose milestones, too, are done."""
        self.is_done = False
        """Whether all steps of the run are done."""
        self.report_step: Callable[[int], None] = lambda step: None
        """Called when a step is finished on this node."""
        self.is_due: Callable[[int], bool] = lambda step: False
        """Whether anything after a step needs the reference: an evaluation or a checkpoint."""
        self.base_round = max((section.round for section in state.sections.values()), default=0)
        """The number of the last round before the view."""
        single = len(plan.pipelines) == 1 and (context.definition.tied_trained is None or len(plan.stages) == 1)
        self.is_alone = single and not start.followed
        """Whether no section has a second member or a spare that follows it, so that no round has to wait."""
        self.last_step = last_step_of(job, context.facts, position)
        members = plan.nodes if self.gradient else tuple(dict.fromkeys(plan.pipelines[self.pipeline]))
        self.commit = Commit(members, context.name, position.step)
        self.exchanges: dict[str, Exchange] = {}
        self.links: dict[str, RoundLink] = {}
        """The rounds of the sections that have other members."""
        self._open_sections(start)
        self.spread: IslandRounds | None = None
        """The rounds' arithmetic on the ranks of an island; None: it is this process's."""
        self.log = RoundLog(self.links, context.send)
        own_loop = resources.own is not None
        self.why_nobody_judges = cannot_judge(plan, own_loop) if job.updates.judge else ""
        seat = Seat(
            context,
            resources.data,
            state,
            plan,
            position,
            base=self.base_round,
            last_step=self.last_step,
            spare=False,
            own_loop=own_loop,
        )
        self.judge = judge_of(seat)

    def _open_sections(self, start: ViewStart) -> None:
        """Make each section's exchange, and, if the section has other members, its link."""
        self.followed: dict[str, bool] = {}
        """For each section, whether spares follow it."""
        context, job, plan = self.context, self.job, self.plan
        until = last_outer_round(self.base_round, self.position.step, self.last_step, job.updates)
        for name, section in self.state.sections.items():
            followed = not start.followed.isdisjoint(stages_of(name, len(plan.stages) - 1))
            exchange = exchange_of(job, plan, section, context.name, followed=followed, until=until)
            self.exchanges[name] = exchange
            exchange.place_in(context.wire.place)
            rounds = exchange.plan
            self.followed[name] = followed
            if len(rounds.members) > 1 or followed:
                self.links[name] = RoundLink(
                    exchange,
                    Rounds(rounds, context.name, section.round, section.chain),
                    Outlet(self.send_round, context.refuse, context.diverged),
                    coding=context.clock.coding,
                    audit=job.updates.audit,
                    sending=lambda: context.wire.under_way,
                    signer=start.signer,
                    spoilers=spoilers_of(job.train, plan, rounds, exchange.me),
                )

    def spread_rounds(self) -> None:
        """If an island's ranks keep the sections, let them compute the rounds of these; the place is taken up there."""
        if self.resources.ranks is not None:
            until = last_outer_round(self.base_round, self.position.step, self.last_step, self.job.updates)
            words: dict[str, Any] = {"job": self.job.model_dump_json(), "plan": self.plan.to_json()}
            words |= {"me": self.context.name, "followed": self.followed, "until": until}
            self.spread = IslandRounds(self.resources.ranks, self.exchanges, words)

    def encode_ahead(self) -> None:
        """All sections' rounds are about to begin: let an island's ranks encode at the same time."""
        if self.spread is not None:
            self.spread.begin({name: link.rounds.applied + 1 for name, link in self.links.items()})

    def apply(self, rounds: Mapping[str, RoundLink], here: Callable[[RoundLink], None]) -> None:
        """Apply complete rounds, by section: on the ranks of an island that keep these, or by ``here``."""
        with self.context.clock.coding("apply"):
            if self.spread is None:
                for link in rounds.values():
                    here(link)
            else:
                complete = {name: link.complete_round for name, link in rounds.items()}
                self.spread.apply(complete, lambda name: here(rounds[name]))

    def finish(self, results: Mapping[str, Sequence[Result]]) -> None:
        """The rounds with these results, by section, have been applied to g: close them, and move the chains on."""
        block = self.job.updates.block
        contents = self.spread.contents(results, block) if self.spread is not None else {}
        for name, found in results.items():
            self.links[name].finish(found, block, contents.get(name))

    # ---- waiting ---------------------------------------------------------------------------

    def wait(
        self, done: Callable[[], bool], what: str, peers: Peers = tuple, again: Callable[[], None] | None = None
    ) -> None:
        """Handle messages until ``done()``. ``what``: words for the trace; ``peers()``: the nodes that this node waits
        for; ``again()``: asks for the missing message again, called from time to time. Raises ViewEnds."""
        asking = SayAgain()
        with self.context.clock.span(what), self.resources.waiting.on(peers):
            while not done():
                self.context.pump(0.05)
                if again is not None and asking.due():
                    again()

    def wait_for_results(self) -> None:
        """Handle messages until the open rounds are complete. Raises ViewEnds."""
        links = self.links.values()
        self.wait(
            lambda: all(link.complete for link in links),
            "wait for results",
            lambda: {name for link in links for name in link.rounds.lacking()},
        )

    def introduce(self) -> None:
        """If contributions are masked, exchange mask keys. Raises ViewEnds."""
        for link in self.links.values():
            link.introduce()
        self.wait(lambda: not self._unknown(), "wait for keys", self._unknown, self._introduce_again)

    def _unknown(self) -> set[str]:
        """Members whose mask keys have not arrived."""
        return {name for link in self.links.values() for name in link.unknown}

    def _introduce_again(self) -> None:
        for link in self.links.values():
            link.introduce(again=True)

    def drop_messages(self) -> None:
        """A later view has started: free the memory of this one's rounds."""
        for link in self.links.values():
            link.drop()

    # ---- the commit point ------------------------------------------------------------------

    @property
    def committed_norm(self) -> float:
        """The global gradient norm of the last finished step if that was the last committed one; else 0."""
        return self.commit.norm if self.commit.step == self.step else 0.0

    def agree(self, step: int, square: float) -> None:
        """Wait until every member is ready for the step, which commits it. Raises ViewEnds.

        ``square``: this node's part of the squared global norm.
        """
        self.ready_step = step
        commit = self.commit
        if commit.committer == self.context.name:
            if commit.ready(self.context.name, step, square):
                self._tell_commit()
        else:
            self._say_ready(step, square)
        again = partial(self._say_ready, step, square)
        self.wait(lambda: commit.step >= step, "wait for the commit", lambda: commit.lacking(step), again)

    def handle_commit(self, sender: str, header: data_pb2.Header) -> None:
        """Handle a message of one of ``COMMIT_KINDS``."""
        if header.kind == data_pb2.COMMIT:
            if sender == self.commit.committer:
                self.commit.committed(header.commit.step, header.commit.norm)
        elif self.commit.ready(sender, header.ready.step, header.ready.square):
            self._tell_commit()
        elif self.commit.committer == self.context.name and header.ready.step == self.commit.step:
            self._tell_commit_to(sender)  # it says so again, so it lacks the commit

    def _say_ready(self, step: int, square: float) -> None:
        if self.commit.committer != self.context.name:
            header = data_pb2.Header(kind=data_pb2.READY, ready=data_pb2.Ready(step=step, square=square))
            self.context.send(self.commit.committer, header, b"", URGENT)

    def _tell_commit(self) -> None:
        for name in self.commit.others:
            self._tell_commit_to(name)

    def _tell_commit_to(self, name: str) -> None:
        told = data_pb2.Commit(step=self.commit.step, norm=self.commit.norm)
        header = data_pb2.Header(kind=data_pb2.COMMIT, commit=told)
        self.context.send(name, header, b"", URGENT)

    # ---- what a mode does with a step --------------------------------------------------------

    def offered(self, norm: float) -> None:
        """Record the norm of this node's update: of its contributions to a round, or, alone in its group, of its
        gradient."""
        if self.overflows and self.state.loss_scale is not None and not self.state.loss_scale.good:
            return  # the step before may have overflowed: to offer nothing is no sign of idleness
        learns = any(section.g.numel() for section in self.state.sections.values())
        self.resources.idle.offered(self.context, norm, learns)

    def optimise(self, count: int, step: int, norm: float) -> None:
        """As `take_step`, with this node's optimiser."""
        island, optimizer = self.resources.ranks, self.resources.optimizer
        with self.context.clock.computing("optimiser"):
            if island is not None:
                island.step(count, *_pace(self.context, optimizer, count, step, norm))
            else:
                take_step(self.context, optimizer, self.state, count, step, norm)

    def prepare(self, count: int) -> None:
        """Gradient mode: make of each gradient what the group sums; see `Optimizer.offer`."""
        island, optimizer = self.resources.ranks, self.resources.optimizer
        shares = {name: exchange.share for name, exchange in self.exchanges.items()}
        if island is None:
            for name, section in self.state.sections.items():
                optimizer.offer(section, count, shares[name])
        elif not optimizer.clips(count):  # where it clips, the group sums the gradients as they are: no order is needed
            island.prepare(count, shares)

    def squares(self, names: Collection[str] | None = None, alone: Collection[str] = ()) -> dict[str, float]:
        """As `squares_of`; of all sections if no names are given."""
        names = self.state.sections if names is None else names
        if self.resources.ranks is not None:
            return self.resources.ranks.squares(names, alone)
        return squares_of(self.state.sections.values(), names, alone)

    def rescale(self, norm: float) -> None:
        """fp16: move the loss scale by the global gradient norm of a committed step."""
        before = self.state.loss_scale
        if before is not None:
            self.state.loss_scale = before.after(math.isfinite(norm), self.job.train.loss_scale_steps)

    @property
    def overflows(self) -> bool:
        """Whether a gradient that is not finite is nothing to warn of: a smaller loss scale may help."""
        return self.state.loss_scale is not None and not self.state.loss_scale.is_least

    def stepped(self, step: int) -> None:
        """The step is finished on this node."""
        self.step = step
        self.report_step(step)

    def send_round(self, to: str, header: data_pb2.Header, payload: Sequence[bytes] | memoryview) -> None:
        """Send a message of a round."""
        self.context.send(to, header, payload, ROUND)


def last_step_of(job: Job, facts: Facts, position: Position) -> int:
    """The number of the run's last step, for a view that begins at ``position``."""
    if job.run.steps is not None:
        return job.run.steps
    return position.last_step((job.run.epochs or 1) * facts.samples, job.train.batch)


def last_outer_round(base: int, step: int, last_step: int, updates: Updates) -> int:
    """The last round with an outer step, in a view that begins after round ``base`` and step ``step``."""
    interval = updates.interval
    return base + max(0, last_step // interval - step // interval)


def take_step(
    context: NodeContext, optimizer: Optimizer, state: StageState, count: int, step: int, norm: float
) -> None:
    """Take one optimiser step in every section. ``count``: the number of steps with these moments, from 1 on; ``norm``:
    the global gradient norm, for clipping."""
    step_all(optimizer, state.sections.values(), count, *_pace(context, optimizer, count, step, norm))


def _pace(context: NodeContext, optimizer: Optimizer, count: int, step: int, norm: float) -> tuple[float, float]:
    """(learning rate, factor of the gradients) of a step."""
    train = context.job.train
    factor = clip_factor(norm, train.clip) if optimizer.clips(count) else 1.0
    return learning_rate(train, step, context.facts.steps), factor
