"""Measurements of a run's devices and links: by the nodes when they joined, and by training since.

Every question for a plan takes its numbers from here. No I/O, and no clock of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ...job.chosen import microbatch_of
from ...job.data.facts import Facts
from ...job.schema import SECURE_MEMBERS, Job
from ...proto.control_pb2 import StepDone
from ...scheduler import Device
from ...scheduler.networks.network import DEFAULT_LATENCY
from ...scheduler.plans import Plan
from ..membership.questions import Question
from .claims import Claims
from .counted import Counted
from .equals import Equals
from .link_rates import LinkRates
from .planner import Search, fetch_seconds, memories_of, step_seconds, workload_of
from .speeds import Speeds
from .tuner import Tuner

Pair = tuple[str, str]


class Measured:
    """``links``: (from, to) -> (seconds one way, bits a second), as measured; ``when``: on the clock of ``now``, and at
    0 where that is not said. ``devices``: node -> its device as JSON."""

    def __init__(
        self,
        job: Job,
        facts: Facts,
        devices: dict[str, dict[str, Any]],
        links: dict[Pair, tuple[float, float]],
        when: Mapping[Pair, float] | None = None,
    ) -> None:
        self.job, self.facts, self.devices, self.links = job, facts, devices, links
        self.when = dict.fromkeys(links, 0.0) | dict(when or {})
        self._asked: Counted | None = None
        self._counted = Counted({}, (), 0.0)
        self._new: set[Pair] = set()
        """Links that were measured since the plan in force was asked for."""
        self._equals = Equals(devices)
        self.rates = LinkRates(self._rate)
        self.speeds = Speeds(facts, microbatch_of(job, {}), lambda name: self.tflops(name) or 1.0)
        self.claims = Claims()
        self.tuner = Tuner()

    def joined(self, name: str, device: dict[str, Any]) -> None:
        """A node has joined, maybe again, from elsewhere and on another machine."""
        self.devices[name] = device
        self._equals.joined(name, device)
        # A life that ended frozen or cut off left numbers that would keep the node's next life out of plans.
        for pair in [pair for pair in self.links if name in pair]:
            del self.links[pair], self.when[pair]
        self._new &= self.links.keys()
        self.rates.forget(name)
        self.claims.forget(name)

    def found(self, links: Mapping[Pair, tuple[float, float]], now: float) -> None:
        """A node has measured links."""
        self.links.update(links)
        self.when.update(dict.fromkeys(links, now))
        self._new.update(links)

    def step(self, name: str, report: StepDone, now: float) -> None:
        """A node's report of a step."""
        self.speeds.step(name, report.compute_seconds, now)
        self.rates.step(name, report.sent, now)

    def enter(self, plan: Plan, now: float) -> None:
        """A view begins: the nodes have other work."""
        self.speeds.enter(plan)
        self.claims.enter(self.speeds.work)
        counted, self._asked = self._asked, None
        self._counted = counted or self._counts(plan.nodes, now)
        self._new = {pair for pair in self._new if self.when[pair] > self._counted.at}
        self.rates.enter(self._counted.rate)

    def news(self, now: float) -> tuple[str, dict[Pair, tuple[float, float]]]:
        """What differs from the plan's assumptions, as a sentence (empty: nothing does); and the links concerned."""
        if slow := self.speeds.news(now):
            return slow, {}
        if links := self.rates.news(now):
            known = self.known_links(now)
            return links, {pair: known[pair] for pair in self.rates.believed(now)}
        if self._new and (late := self._counted.late(self._measured_since(now), self.when)):
            return late, {}
        # The time that a step computes, where the plan chooses updates by it.
        return (
            self.speeds.pace()
            if "auto" in (self.job.updates.codec, self.job.updates.overlap, self.job.updates.every)
            else ""
        ), {}

    def search(self, question: Question, present: Iterable[str], now: float) -> Search:
        """A question for a plan with the present measurements. ``present``: the nodes in the run, whose claims limit
        each other."""
        self._asked = self._counts(question.names, now)
        known, trained = self.known_links(now), self.rates.confirmed(now)
        ages = {pair: 0.0 if pair in trained else max(0.0, now - self.when.get(pair, now)) for pair in known}
        return Search(
            replace(workload_of(self.job, self.facts), reached=self.speeds.reached),
            question,
            self._devices_of(question.names, present, now),
            tuple((*pair, *found) for pair, found in known.items()),
            SECURE_MEMBERS if self.job.updates.secure else 1,
            ages=tuple(round(age) for age in ages.values()),
        )

    def _measured_since(self, now: float) -> dict[Pair, float]:
        """Bits a second of links that were measured since the plan was asked for, and that training has not shown."""
        return {pair: self.links[pair][1] for pair in self._new - self.rates.believed(now).keys()}

    def _counts(self, names: Iterable[str], now: float) -> Counted:
        return Counted({pair: rate for pair, (_, rate) in self.known_links(now).items()}, names, now)

    def known_links(self, now: float) -> dict[Pair, tuple[float, float]]:
        """The links as measured, corrected by what training has shown since."""
        known = dict(self.links)
        for source, target in (believed := self.rates.believed(now)):
            latency, _ = self._link(source, target) or (DEFAULT_LATENCY, 0.0)
            known[source, target] = (latency, believed[source, target])
        return known

    def tflops(self, name: str) -> float:
        """Tflop/s as measured when the node joined, corrected by equal devices; 0: not known."""
        return self._equals.measured(name)

    def rate_of(self, name: str) -> float:
        """Bits a second of a node's fastest link, as measured; 0: not known."""
        return max((rate for pair, (_, rate) in self.links.items() if name in pair), default=0.0)

    def slowest_of(self, name: str) -> float:
        """Bits a second of a node's slowest link, as measured; 0: not known."""
        return min((rate for pair, (_, rate) in self.links.items() if name in pair and rate > 0), default=0.0)

    def fetch_s(self, name: str, plan: Plan, now: float) -> float:
        """Seconds that a node takes to fetch the state of its place in a plan; 0: not known, or nothing to fetch."""
        return fetch_seconds(self.job, self.facts, plan, name, self.known_links(now)) if name in plan.nodes else 0.0

    def step_s(self, plan: Plan) -> float:
        """Seconds that a step of a plan computes; 0: not known."""
        return step_seconds(self.job, self.facts, plan, self.tflops)

    def _devices_of(self, names: Iterable[str], present: Iterable[str], now: float) -> tuple[Device, ...]:
        claimed = {name: self.tflops(name) for name in present}
        beside = MediansBeside(claimed)
        asked = tuple(names)
        return tuple(self._device(name, beside(name), len(asked), now) for name in asked)

    def _device(self, name: str, others: float, nodes: int, now: float) -> Device:
        """``others``: the median of what the others claim, 0 where they say nothing. ``nodes``: asked about."""
        found = self.devices.get(name, {})
        tflops = self.claims.believed(name, self.tflops(name) * self.speeds.factor(name, now), [others])
        memory = memories_of(self.job, found, nodes)
        upload = float(found.get("upload_bps") or 0.0)
        device = Device(name, upload=upload if upload > 0 else None, **memory)
        return replace(device, tflops=tflops) if tflops > 0 else device

    def _link(self, source: str, target: str) -> tuple[float, float] | None:
        """Latency and rate; those of the other direction if this one was not measured."""
        return self.links.get((source, target)) or self.links.get((target, source))

    def _rate(self, source: str, target: str) -> float | None:
        found = self._link(source, target)
        return found[1] if found else None


class MediansBeside:
    """For each node the median of the others' claims, in about the time of one median. Claims of 0 do not count; 0 if
    no other node claims anything."""

    def __init__(self, claimed: Mapping[str, float]) -> None:
        self._claimed = claimed
        self._sorted = sorted(one for one in claimed.values() if one > 0)

    def __call__(self, name: str) -> float:
        own, found = self._claimed.get(name, 0.0), self._sorted
        if own > 0:
            at = bisect_left(found, own)
        else:
            at = len(found)
        count = len(found) - (own > 0)
        middle = [found[index + (index >= at)] for index in ((count - 1) // 2, count // 2)] if count > 0 else [0.0]
        return sum(middle) / len(middle)
