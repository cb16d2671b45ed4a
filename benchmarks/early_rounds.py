"""How much of a gradient round hides behind the backward pass: computed, not measured.

    python -m benchmarks.early_rounds

The rounds are those of farflung: the parts of a view's plan and the state machine of the protocol, one for each member,
on a clock that is computed. Every member has a link of the same rate in each direction, on which messages queue; coding
and the optimiser take no time, and every part is offered as soon as it may be, whatever is in flight: the window of
parts (node/rounds/protocol/window.py) is not computed. A forward pass takes a third of the computation, and the
backward pass completes gradients at an even rate, from the last element to the first. DDP: buckets of 25 MB, summed one
after the other by ring all-reduce, each from when it is complete. Results go to benchmarks/results/early_rounds.json.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from farflung.job.schema import Updates
from farflung.node.rounds.protocol.machine import Rounds
from farflung.node.rounds.protocol.messages import (
    Complete,
    Contribution,
    Decide,
    Effect,
    Part,
    Result,
    SendContribution,
    SendHeld,
    SendResult,
)
from farflung.node.state.sections.section import Layout
from farflung.node.state.stage_state import round_plan
from farflung.scheduler import Plan

RESULTS = Path(__file__).resolve().parent / "results" / "early_rounds.json"
BUCKET_BYTES = 25 << 20
RATES = (100.0, 1_000.0, 10_000.0)
"""Mbit/s."""


@dataclass(frozen=True)
class Step:
    """A step's gradient (elements), the seconds that it computes, and those that a message takes one way."""

    elements: int = 124_000_000
    compute_s: float = 1.0
    latency_s: float = 0.005

    def complete_at(self, start: int) -> float:
        """When the backward pass has completed all gradients from element ``start`` on."""
        return self.compute_s * (1 / 3 + 2 / 3 * (1 - start / self.elements))


USUAL = Step()


class Group:
    """The members of one round, and what is under way between them."""

    def __init__(self, members: int, rate: float, element_bytes: float, early: bool, step: Step = USUAL) -> None:
        self.step = step
        names = tuple(f"n{i}" for i in range(members))
        plan = Plan(pipelines=tuple((name,) for name in names), stages=((0, 0),), microbatches=(1,) * members)
        layout = Layout.of("stage-0", {"all": (step.elements,)})
        self.plan = round_plan(plan, layout, Updates(mode="gradient"))
        self.rate, self.element_bytes, self.early = rate * 1e6 / 8, element_bytes, early
        self.rounds = {name: Rounds(self.plan, name, 0, 0) for name in names}
        self._free = dict.fromkeys(itertools.product(names, ("up", "down")), 0.0)
        self._events: list[tuple[float, int, Callable[[float], Iterable[Effect]], str]] = []
        self._numbers = itertools.count()
        self._done: dict[str, float] = {}

    def step_s(self) -> float:
        """Seconds from the step's beginning until every member has the results."""
        for name in self.rounds:
            for part in self.plan.parts:
                moment = self.step.complete_at(part.start) if self.early else self.step.compute_s
                self._at(moment, lambda now, name=name, part=part: self._offer(name, part, now), name)
        while self._events:
            now, _, happens, name = heapq.heappop(self._events)
            self._carry(name, happens(now), now)
        return max(self._done.values())

    def _at(self, moment: float, happens: Callable[[float], Iterable[Effect]], name: str) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), happens, name))

    def _offer(self, name: str, part: Part, now: float) -> Iterable[Effect]:
        rounds = self.rounds[name]
        own = Contribution(b"", (1,), hash((name, part.index)) & 0xFFFF)
        return rounds.begin({part.index: own}, now) if rounds.open is None else rounds.offer(part.index, own, now)

    def _carry(self, name: str, effects: Iterable[Effect], now: float) -> None:
        waiting = list(effects)
        while waiting:
            effect = waiting.pop(0)
            match effect:
                case Decide():
                    who = tuple(index for index, _ in effect.contributions)
                    digests = tuple(sent.digest for _, sent in effect.contributions)
                    waiting += self.rounds[name].decided(effect.part, Result(effect.part, who, digests), now)
                case SendContribution():
                    self._send(name, effect.to, effect.part, now, lambda to, then, sent=effect: to.contribution(
                        name, sent.of, sent.round, sent.part, sent.chain, sent.contribution, now=then
                    ))  # fmt: skip
                case SendResult():
                    part = effect.result.part if self.plan.pattern != "all_to_all" else None
                    self._send(name, effect.to, part, now, lambda to, then, sent=effect: to.result(
                        name, sent.round, sent.chain, sent.result, then
                    ))  # fmt: skip
                case SendHeld():
                    self._send(name, effect.to, None, now, lambda to, then, part=effect.part: to.held(
                        name, 1, part, then
                    ))  # fmt: skip
                case Complete():
                    self._done[name] = now

    def _send(
        self, name: str, to: str, part: int | None, now: float, take: Callable[[Rounds, float], Iterable[Effect]]
    ) -> None:
        """A message with the bytes of a part; None: a few bytes."""
        one = self.plan.parts[part] if part is not None else None
        seconds = (one.stop - one.start) * self.element_bytes / self.rate if one is not None else 0.0
        begins = max(now, self._free[name, "up"]) if one is not None else now
        latency = self.step.latency_s
        arrives = max(begins + latency, self._free[to, "down"]) + seconds if one is not None else now + latency
        if one is not None:
            self._free[name, "up"], self._free[to, "down"] = begins + seconds, arrives
        self._at(arrives, lambda then: take(self.rounds[to], then), to)


def ddp_step_s(members: int, rate: float, element_bytes: float, step: Step = USUAL) -> float:
    """The same for DDP with a hook of so many bytes an element."""
    free, stop, length = 0.0, step.elements, BUCKET_BYTES // 4
    while stop > 0:
        start = max(0, stop - length)
        sent = 2 * (members - 1) / members * (stop - start) * element_bytes
        free = max(free, step.complete_at(start)) + sent / (rate * 1e6 / 8) + 2 * (members - 1) * step.latency_s
        stop = start
    return free


def main() -> None:
    rows = []
    print("| members | bytes an element | Mbit/s | within the pass | after it | DDP |")
    print("| --- | --- | --- | --- | --- | --- |")
    for members, element_bytes, rate in itertools.product((2, 4), (4.0, 1.0), RATES):
        early, late = (Group(members, rate, element_bytes, early).step_s() for early in (True, False))
        other = ddp_step_s(members, rate, element_bytes)
        row = {"members": members, "element_bytes": element_bytes, "rate_mbit": rate}
        rows.append(row | {"early_s": round(early, 3), "late_s": round(late, 3), "ddp_s": round(other, 3)})
        print(f"| {members} | {element_bytes:g} | {rate:g} | {early:.2f} | {late:.2f} | {other:.2f} |")
    RESULTS.write_text(
        json.dumps({"elements": USUAL.elements, "compute_s": USUAL.compute_s, "rows": rows}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
