"""A spare follows a place: it fetches a snapshot of the reference, and applies the rounds that the group has applied.

So a joiner catches up while the others train, and a spare can take the place without fetching gigabytes. The spare asks
one member at a time for one round after another; the answer (node/rounds/log.py) comes when that round is applied, with
priority over pieces of the snapshot. The snapshot is that of the round with which the view began, so several members
can serve it while their own reference changes.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from ....job.data.sampling import Position
from ....proto import data_pb2
from ....scheduler import Plan
from ...context import ROUND, NodeContext
from ...rounds.arithmetic.exchange import Exchange
from ...rounds.checking.judge import Judge, Seat, judge_of
from ...rounds.exchanges import exchange_of
from ...rounds.protocol.headers import received_contribution, received_result
from ...rounds.protocol.messages import Contribution, Result, digests_of
from ...state.stage_state import StageState
from ...state.transfers.fetching import StateFetch
from ...state.transfers.traffic import StateTraffic
from ..member.view_member import last_outer_round, last_step_of, take_step
from ..resources import Resources
from .pace import Pace

Answer = data_pb2.Result | data_pb2.Contribution | data_pb2.RoundEnd
"""The answer to a request for a round."""
ASK_AGAIN_SECONDS = 10.0
"""Seconds until a round is asked of another member, doubled each time, because the answer comes only when the round is
applied."""
LONGEST_SECONDS = 120.0
HELD_PART, LEAST_HELD = 2, 16 << 20
"""At most so many times the bytes of the place's weights, as rounds, wait for the snapshot; then no more are asked
for."""


@dataclass
class _Came:
    """A round as one member sent it."""

    chains: dict[str, int] = field(default_factory=dict)
    results: dict[str, dict[int, Result]] = field(default_factory=dict)
    contributions: dict[str, dict[tuple[int, int], Contribution]] = field(default_factory=dict)
    norm: float = 0.0
    messages: int = 0
    bytes: int = 0


@dataclass
class _Segment:
    """The rounds of one view: those after ``base``, up to ``end`` if the view is over."""

    context: NodeContext
    position: Position
    base: int
    exchanges: dict[str, Exchange]
    judge: Judge | None = None
    end: int | None = None


class Follower:
    """A spare's copy of a place. Call ``enter`` for each view, then ``work``; ``failed`` says why it cannot go on
    (empty: it can).

    ``state``: the state that it fills; it is filled already if ``fetch`` is None. Fetching a snapshot may take several
    views, whose rounds wait for it.
    """

    def __init__(
        self,
        resources: Resources,
        traffic: StateTraffic,
        state: StageState,
        fetch: StateFetch | None,
        caught_up: Callable[[str], None],
    ) -> None:
        """``caught_up(failed)`` is called when the place is followed, or with the reason why it cannot be."""
        self.state, self.fetch, self.failed, self.norm = state, fetch, "", 0.0
        self._resources, self._traffic, self._caught_up = resources, traffic, caught_up
        self._guides: tuple[str, ...] = ()
        self._said = False
        self._segments: deque[_Segment] = deque()
        self._rounds: dict[int, _Came] = {}
        self._coming = _Came()
        self._asked, self._request_number, self._turn, self._ask_at = "", 0, 0, 0.0
        self._newest = self._last = 0
        self._pace, self._snapshot = Pace(), (0, 0)
        weights = sum(4 * section.layout.numel for section in state.sections.values())
        self._room = max(LEAST_HELD, HELD_PART * weights)

    def enter(
        self, context: NodeContext, plan: Plan, like: str, position: Position, round: int, guides: Sequence[str]
    ) -> None:
        """A view begins: follow the place of the node ``like``. ``guides``: the members with that place."""
        job = context.job
        last_step = last_step_of(job, context.facts, position)
        until = last_outer_round(round, position.step, last_step, job.updates)
        exchanges = {}
        for name, section in self.state.sections.items():
            exchanges[name] = exchange_of(job, plan, section, like, follows=True, until=until)
        if self._segments:
            self._segments[-1].end = self._last
        seat = Seat(
            context,
            self._resources.data,
            self.state,
            plan,
            position,
            base=round,
            last_step=last_step,
            spare=True,
            own_loop=self._resources.own is not None,
        )
        self._segments.append(_Segment(context, position, round, exchanges, judge_of(seat)))
        self._guides, self._asked, self._said = tuple(guides), "", self.fetch is None
        self._newest = self._last = round
        self._pace.made(round)
        if self.fetch is None:
            self._next_segment()
        else:
            self.fetch.moved(guides)

    @property
    def whole(self) -> bool:
        """Whether the state equals the group's at some round."""
        return self.fetch is None and not self.failed

    @property
    def round(self) -> int:
        """The last round applied."""
        return max((section.round for section in self.state.sections.values()), default=self._last)

    @property
    def step(self) -> int:
        """Gradient mode: the last step that the state includes."""
        return self._segments[0].position.step + self.round - self._segments[0].base

    def work(self) -> None:
        """Ask for what is missing, apply the rounds that can be applied, and report once when nothing is missing."""
        if self.failed:
            return
        lost = self._traffic.take_lost()
        if self.fetch is not None:
            self.fetch.work(lost)
            if self.fetch.failure:
                self._fail(f"no holder of the place's state answered: {self.fetch.failure}")
                return
            if self.fetch.done:
                self.fetch.finish()
                self._snapshot = self.fetch.size, self.fetch.fetched
                if self.state.loss_scale is not None and self.fetch.loss_scale is not None:
                    begun = self._segments[0]
                    patience = begun.context.job.train.loss_scale_steps
                    self.state.loss_scale = self.fetch.loss_scale.possible(begun.position.step, patience)
                self.fetch = None
                self._start_chain()
        self._ask(lost)
        while self.whole:
            if self.round == self._segments[0].end:
                self._next_segment()
            elif (came := self._rounds.pop(self.round + 1, None)) is not None:
                with torch.no_grad():
                    self._apply(came)
            else:
                break
        if self.whole and not self._said and self.round >= self._newest - 1:
            self._said = True
            self._caught_up("")

    def flushed(self, present: Collection[str]) -> None:
        """The view is over: pending requests are lost, and only the members ``present`` can be asked for last
        rounds."""
        self._guides = tuple(name for name in self._guides if name in present)
        self._asked = ""
        if not self._guides:
            self._fail("nobody who holds the place is left")
        elif self.fetch is not None:
            self.fetch.moved(present)

    def reached(self, step: int, targets: Mapping[str, int]) -> bool:
        """After the view: whether all of its rounds have arrived, and are applied if the snapshot is complete."""
        view = self._segments[-1]
        if self.state.gradient:
            last = view.base + step - view.position.step
        else:
            last = max((targets.get(name, 0) for name in self.state.sections), default=0)
        return self._last >= last and (self.fetch is not None or self.round >= last)

    def handle(self, sender: str, answer: Answer, payload: npt.NDArray[np.uint8]) -> None:
        """Take a part of a round, or its end. Answers from any node but the one asked last are ignored."""
        if sender != self._asked or answer.request != self._request_number or answer.round != self._last + 1:
            return
        coming = self._coming
        if isinstance(answer, data_pb2.RoundEnd):
            self._newest = max(self._newest, answer.applied)
            self._pace.made(self._newest)
            self._ended(answer)
            return
        if answer.section not in self.state.sections:
            raise ValueError(f"a round of {answer.section}, which is not followed here")
        if isinstance(answer, data_pb2.Result):
            coming.chains[answer.section] = answer.chain
            result = received_result(answer, payload.data)
            coming.results.setdefault(answer.section, {})[answer.part] = result
        elif answer.HasField("of"):
            sent = received_contribution(answer, payload.data)
            coming.contributions.setdefault(answer.section, {})[answer.part, answer.of] = sent
        coming.messages += 1
        coming.bytes += payload.nbytes

    # ---- inside ----------------------------------------------------------------------------

    def _fail(self, why: str) -> None:
        self.failed = why
        self._rounds.clear()
        self._caught_up(why)

    def _next_segment(self) -> None:
        """All rounds of a view are applied: begin with those of the next view."""
        if len(self._segments) > 1:
            self._segments.popleft()
        self._start_chain()

    def _start_chain(self) -> None:
        for section in self.state.sections.values():
            section.restart_chain(self._segments[0].context.view, self._segments[0].base)

    def _ask(self, lost: set[str]) -> None:
        """Ask one member for one round; ask the next member if that one is lost or silent for long."""
        now = time.monotonic()
        if not self._asked and sum(came.bytes for came in self._rounds.values()) > self._room:
            return
        if self._asked and self._asked not in lost and now < self._ask_at:
            return
        if self._asked:
            self._turn += 1
        self._request(now)

    def _request(self, now: float) -> None:
        self._coming = _Came()
        self._asked = self._guides[self._turn % len(self._guides)]
        self._ask_at = now + min(LONGEST_SECONDS, ASK_AGAIN_SECONDS * 2 ** min(self._turn, 5))
        self._request_number = self._traffic.next_number()
        wanted = data_pb2.RoundRequest(round=self._last + 1, request=self._request_number)
        header = data_pb2.Header(kind=data_pb2.ROUND_REQUEST, round_request=wanted)
        self._segments[-1].context.send(self._asked, header, b"", ROUND)

    def _ended(self, end: data_pb2.RoundEnd) -> None:
        if not end.messages:
            snapshot, fetched = (self.fetch.size, self.fetch.fetched) if self.fetch is not None else self._snapshot
            why = self._pace.told(snapshot, fetched, self._room)
            self._fail(f"round {end.round} is not kept any more: {why}")
            return
        if self._coming.messages != end.messages:
            self._ask_at = 0.0  # a part was lost with a connection: ask again
            return
        self._coming.norm = end.norm
        self._rounds[end.round] = self._coming
        self._pace.came(self._coming.bytes)
        self._last = int(end.round)
        self._asked = ""
        self._ask(set())

    def _apply(self, came: _Came) -> None:
        number, state = self.round + 1, self.state
        for name, section in state.sections.items():
            if came.chains.get(name) != section.chain:
                self._fail(f"its copy of {name} is another than the group's after round {number - 1}")
                return
            for (part, index), sent in came.contributions.get(name, {}).items():
                result = came.results[name].get(part)
                known = dict(zip(result.contributors, result.digests, strict=False)) if result else {}
                if known.get(index) != sent.digest:
                    self._fail(f"{self._asked} sent another contribution to round {number} than was counted")
                    return
        for name in state.sections:
            exchange, results = self._segments[0].exchanges[name], came.results[name]
            contributions = came.contributions.get(name, {})
            exchange.check(number, results, contributions)
            judge = self._segments[0].judge
            if judge is not None and number >= self._newest:  # else the group is ahead: catch up first
                judge.round(exchange, number, list(results.values()), contributions)
            exchange.follow(exchange.updates(number, results, contributions))
        if state.gradient:
            step, self.norm = self.step + 1, came.norm
            if math.isfinite(came.norm):
                count = state.taken(step)
                take_step(self._segments[0].context, self._resources.optimizer, state, count, step, came.norm)
            if state.loss_scale is not None:
                patience = self._segments[0].context.job.train.loss_scale_steps
                state.loss_scale = state.loss_scale.after(math.isfinite(came.norm), patience)
        for name, section in state.sections.items():
            results = came.results[name]
            digests = digests_of([results[part] for part in sorted(results)])
            section.chain = section.next_chain(digests, self._segments[0].context.job.updates.block)
            section.round = number
