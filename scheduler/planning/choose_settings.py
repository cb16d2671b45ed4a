"""What a plan chooses of the job beside a placement: steps between rounds, the schedule, recompute, and microbatches.

Each choice is made by planning with it. The plans are compared by the simulated seconds of a step, and the plan's `why`
says what the next best choice would have given.

* Recompute and the schedule change no weight, so the fastest is taken; of about equally fast ones, the plainest.
* Larger microbatches compute faster, smaller ones fill a pipeline better and need less memory: the usual size is taken,
unless the next larger or smaller one makes a step shorter.
* Rarer rounds cost loss, so rounds are as frequent as the network allows: the fewest steps between them with which the
  plan has ENOUGH of the speed that the rarest would give.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..errors import PlanError
from ..networks.network import NOISE, Network
from ..plans import Plan
from ..timing.estimate import Estimator
from ..timing.seconds import candidate_seconds
from ..workloads.settled import as_chosen, as_settled, settled
from ..workloads.workload import Workload
from .replan import as_candidate

ENOUGH = 0.9
"""More frequent rounds must reach this part of the speed that the rarest rounds give."""
SLOWER = 0.02
"""A plainer choice may make a step longer by this part."""
MOST_DEVICES = 256
"""With more devices than this, a plan in force keeps its choices."""

LEAST_S = 1e-3
"""Seconds that a plan gets where no time is left."""
IN_FORCE = 0.2
"""The part of the time that goes to a plan with the choices in force."""

Planned = Callable[[Workload, float, Plan | None], Plan]
"""(a workload that leaves nothing open, seconds for the search, a plan with other choices to begin with or None) -> a
plan. Raises PlanError where there is none."""


@dataclass(frozen=True)
class Made:
    """A workload that leaves nothing open, its plan, and the seconds of a step."""

    workload: Workload
    plan: Plan
    seconds: float


def plan_settings(
    network: Network,
    workload: Workload,
    planned: Planned,
    time_limit: float,
    current: Plan | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Plan:
    """The plan with the best choices for what ``workload`` leaves open. PlanError where no choice has a plan.

    current: the plan in force. Its choices stay unless others shorten a step by more than measurements vary, or rounds
    can be more frequent; going back to rarer rounds again takes a gain of that size. The time is divided among the
    plans still to be made. Each plan but the first begins with one made before, so a small part of the time is enough.
    """
    deadline = clock() + time_limit
    kept = None if current is None else _in_force(network, workload, planned, time_limit, current)
    if kept is not None and len(network) > MOST_DEVICES:
        return kept.plan
    tries = _Tries(network, workload, planned, deadline, clock, kept)
    best = tries.plainest()
    if workload.intervals:
        best = tries.every(best)
    best = tries.kind(best)
    if workload.sizes:
        sized = tries.size(best)
        best = sized if sized is best else tries.kind(sized)
    if kept is not None:
        frequent = best.workload.every < kept.workload.every and best.seconds * ENOUGH <= kept.seconds
        if not frequent and best.seconds * (1 + NOISE) >= kept.seconds:
            return kept.plan
    return replace(best.plan, why="; ".join([best.plan.why, *tries.reasons(best)]))


def _in_force(network: Network, workload: Workload, planned: Planned, time_limit: float, current: Plan) -> Made | None:
    fixed = as_settled(workload, current)
    if dict(fixed.chosen) != current.chosen:
        return None
    try:
        return _timed(network, fixed, planned(fixed, time_limit * IN_FORCE, current))
    except PlanError:
        return None


def _timed(network: Network, workload: Workload, plan: Plan) -> Made:
    estimator = Estimator(network, replace(as_chosen(workload, plan), schedule=plan.schedule), plan.codecs)
    found = as_candidate(estimator, plan)
    if found is None:
        raise PlanError("a plan does not fit the network that it was made for")
    return Made(workload, plan, candidate_seconds(estimator, found, bool(plan.regions)))


class _Tries:
    """The plans that were made with different choices; each combination is planned once."""

    def __init__(
        self,
        network: Network,
        workload: Workload,
        planned: Planned,
        deadline: float,
        clock: Callable[[], float],
        kept: Made | None,
    ) -> None:
        self._network, self._workload, self._planned = network, workload, planned
        self._kinds = [
            (schedule, again)
            for again in ((False, True) if workload.auto_recompute else (None,))
            for schedule in workload.schedules or (None,)
        ]
        self._sizes = [one.microbatch for one in workload.sizes]
        self._steps = [one.every for one in workload.intervals]
        self._deadline, self._clock = deadline, clock
        self._left = len(self._kinds) + len(self._steps).bit_length() + min(4, len(self._sizes))
        self._near = None if kept is None else kept.plan
        self._made: dict[Workload, Made | PlanError] = {}

    def made(
        self,
        every: int | None,
        schedule: str | None,
        recompute: bool | None,
        microbatch: int | None = None,
    ) -> Made | PlanError:
        """The plan with these choices, or why there is none."""
        fixed = settled(self._workload, every, schedule, recompute, microbatch)
        if fixed not in self._made:
            seconds = max(self._deadline - self._clock(), 0.0) / max(self._left, 1)
            self._left -= 1
            try:
                one = _timed(self._network, fixed, self._planned(fixed, max(seconds, LEAST_S), self._begin(fixed)))
                self._made[fixed], self._near = one, one.plan
            except PlanError as error:
                self._made[fixed] = error
        return self._made[fixed]

    def _begin(self, fixed: Workload) -> Plan | None:
        """An earlier plan to begin with; None where the new batch has fewer microbatches than that plan has
        pipelines."""
        near = self._near
        return near if near is None or len(near.pipelines) <= fixed.microbatches else None

    def plainest(self) -> Made:
        """The plan with the rarest rounds and the first schedule and recompute setting for which there is a plan.
        PlanError where there is none for any: what it says is of forwards computed again, if that was tried."""
        tried: dict[bool, PlanError] = {}
        for schedule, recompute in self._kinds:
            one = self.made(None, schedule, recompute)
            if isinstance(one, Made):
                return one
            tried.setdefault(bool(recompute), one)
        raise tried[max(tried)]

    def kind(self, made: Made) -> Made:
        """The plan with the best schedule and recompute setting; rounds and microbatch as in `made`."""
        tried = [self.made(made.workload.every, *kind, made.workload.microbatch) for kind in self._kinds]
        found = [one for one in tried if isinstance(one, Made)]
        limit = min(one.seconds for one in found) * (1 + SLOWER)
        return next(one for one in found if one.seconds <= limit)

    def every(self, rarest: Made) -> Made:
        """The plan with the most frequent rounds that reaches ENOUGH of the speed of `rarest`."""
        low, high, best = 0, len(self._steps) - 1, rarest
        while low < high:  # steps[high] is enough
            middle = (low + high) // 2
            one = self.made(self._steps[middle], rarest.workload.schedule, rarest.workload.recompute)
            if isinstance(one, Made) and one.seconds * ENOUGH <= rarest.seconds:
                best, high = one, middle
            else:
                low = middle + 1
        return best

    def size(self, made: Made) -> Made:
        """The plan with larger microbatches, or else with smaller ones, for as long as the next size shortens a
        step."""
        own = made.workload
        for towards in (1, -1):
            best, at = made, self._sizes.index(own.microbatch) + towards
            while 0 <= at < len(self._sizes):
                one = self.made(own.every, own.schedule, own.recompute, self._sizes[at])
                if not isinstance(one, Made) or one.seconds * (1 + SLOWER) >= best.seconds:
                    break
                best, at = one, at + towards
            if best is not made:
                return best
        return made

    def reasons(self, best: Made) -> list[str]:
        """A sentence for each choice: seconds of a step with it, and with the other choices."""
        workload, took = best.workload, f"a step takes {best.seconds:.3g} s"
        said = []
        if self._steps:
            at = self._steps.index(workload.every)
            others = {self._steps[max(0, at - 1)], self._steps[-1]} - {workload.every}
            with_others = [
                f"with one every {_steps(every)} {other.seconds:.3g} s"
                for every in sorted(others)
                if isinstance(other := self._known(best, every=every), Made)
            ]
            said.append(f"a round every {_steps(workload.every)}: {', '.join([took, *with_others])}")
        if self._workload.schedules:
            name = next(one for one in self._workload.schedules if one != workload.schedule)
            said.append(f"{workload.schedule}: {took}, {_with(name, self._known(best, schedule=name))}")
        if self._workload.auto_recompute:
            words = "forwards are computed again" if workload.recompute else "nothing is computed again"
            name = "nothing computed again" if workload.recompute else "forwards computed again"
            said.append(f"{words}: {took}, {_with(name, self._known(best, recompute=not workload.recompute))}")
        if self._sizes:
            at = self._sizes.index(workload.microbatch)
            beside = [self._sizes[index] for index in (at - 1, at + 1) if 0 <= index < len(self._sizes)]
            with_others = [
                _with(str(size), other) for size in beside if (other := self._known(best, microbatch=size)) is not None
            ]
            said.append(f"microbatches of {_samples(workload.microbatch)}: {', '.join([took, *with_others])}")
        return said

    def _known(
        self,
        made: Made,
        every: int | None = None,
        schedule: str | None = None,
        recompute: bool | None = None,
        microbatch: int | None = None,
    ) -> Made | PlanError | None:
        """The plan with the choices of `made` except for the arguments given, if it was made already; else None."""
        own = made.workload
        again = own.recompute if recompute is None else recompute
        fixed = settled(
            self._workload,
            own.every if every is None else every,
            schedule or own.schedule,
            again,
            own.microbatch if microbatch is None else microbatch,
        )
        return self._made.get(fixed)


def _steps(every: int) -> str:
    return "step" if every == 1 else f"{every} steps"


def _samples(count: int) -> str:
    return "1 sample" if count == 1 else f"{count} samples"


def _with(name: str, other: Made | PlanError | None) -> str:
    return f"with {name} {other.seconds:.3g} s" if isinstance(other, Made) else f"with {name} there is no plan"
