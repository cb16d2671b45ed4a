"""Collects what a view's nodes report of its trials, until a plan follows from it. Pure: the inputs are reports.

A step takes as long as on the node that reports most seconds of it. A view that ends before all of its trials' steps
were reported decides nothing: the next view begins them again, and if it has the same places and trials, what was
counted counts there too. If views are too short for that, it is said once.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from ...proto.control_pb2 import StepDone
from ...scheduler.after_trials import decided, fastest, found_of, pays, shown, without
from ...scheduler.plans import Plan

SHORT = 3
"""It is said when so many views in a row ended within the same trials."""


@dataclass(frozen=True)
class Verdict:
    """The plan that follows; the view's own where nothing is decided. why: one sentence. anew: a node waits for another
    view."""

    plan: Plan
    why: str
    anew: bool = False


class Tuner:
    """Of one view; ``enter`` begins another."""

    def __init__(self) -> None:
        self._view = self._begin = 0
        self._plan: Plan | None = None
        """The view's plan while its trials are not decided."""
        self._steps: dict[int, dict[str, tuple[float, int]]] = {}
        """Step of the view, counted from 1 -> node -> (seconds, bytes)."""
        self._before: dict[int, list[tuple[float, int]]] = {}
        """Trial -> (seconds, bytes) of each step that counted in earlier views with the same places and trials."""
        self._cut = 0
        """How many of these views in a row there were."""

    def enter(self, view: int, plan: Plan, step: int) -> None:
        """A view of this number begins after ``step``."""
        open_ = plan.tuning is not None and bool(plan.tuning.trials)
        if open_ and self._plan is not None and _tries_the_same(plan, self._plan):
            self._before, self._cut = self._counted(self._plan), self._cut + bool(self._steps)
        else:
            self._before, self._cut = {}, 0
        self._view, self._plan, self._begin, self._steps = view, plan if open_ else None, step, {}

    def step(self, node: str, report: StepDone, left: float = math.inf) -> Verdict | None:
        """A node's report of a step; the verdict, once, after the last step that it needs. Before it, once, what keeps
        the trials from ending. left: steps of the run after this one. Where they are too few to make up for a view
        change, the plan stays, with its trials, so that a run with more steps begins them again."""
        plan = self._plan
        if plan is None or plan.tuning is None or report.view != self._view or node not in plan:
            return None
        at = report.step - self._begin
        if not 0 < at <= plan.tuning.steps:
            return None
        known = self._steps.setdefault(at, {})
        known[node] = (report.seconds, report.peak_bytes)
        if len(known) == len(plan.nodes):
            counted, wanted = self._counted(plan), _wanted(plan)
            if all(len(counted.get(index, ())) >= many for index, many in wanted.items()):
                found = {index: found_of(counted[index]) for index in wanted}
                tries = len(self._steps.get(plan.tuning.steps, ())) < len(plan.nodes)
                if fastest(found) and not pays(found, left):
                    if tries:
                        return None  # and it may still fail in one, which has to be heeded
                    self._plan = None
                    late = f"the {left:g} steps that are left would not make up for a view change"
                    return Verdict(plan, f"{shown(plan, found)}; {late}")
                self._plan, best = None, decided(plan, found)
                assert best.tuning is not None
                return Verdict(best, best.tuning.why, anew=tries)  # or a node could fail in a trial that nobody heeds
        if self._cut == SHORT:
            self._cut += 1
            names = ", ".join(one.name for one in plan.tuning.trials)
            why = f"the last {SHORT} views ended within the {plan.tuning.steps} steps that try {names}"
            return Verdict(plan, f"{why}: nothing is decided yet")
        return None

    def failed(self, node: str, view: int, step: int, why: str) -> Verdict | None:
        """A node could not compute a trial; a verdict each time, as none is taken up before the view trains. None where
        its report is of no trial, or of the plan's own choice."""
        plan = self._plan
        if plan is None or plan.tuning is None or view != self._view or node not in plan:
            return None
        index = plan.tuning.at(step - self._begin)
        if not index:
            return None
        less = without(plan, index, f"{node} {why}")
        assert less.tuning is not None
        return Verdict(less, less.tuning.why, anew=True)

    def _counted(self, plan: Plan) -> dict[int, list[tuple[float, int]]]:
        """Trial -> (seconds, bytes) of each step that counts, of this view and of those before."""
        assert plan.tuning is not None
        counted = {index: list(steps) for index, steps in self._before.items()}
        for at in filter(plan.tuning.counts, sorted(self._steps)):
            reported = self._steps[at].values()
            if len(reported) == len(plan.nodes):
                whole = max(seconds for seconds, _ in reported), max(peak for _, peak in reported)
                counted.setdefault(plan.tuning.at(at) or 0, []).append(whole)
        return counted


def _tries_the_same(plan: Plan, before: Plan) -> bool:
    """Whether seconds of one plan's trials are seconds of the other's."""
    trials = [one.tuning.trials for one in (plan, before) if one.tuning is not None]
    return len(trials) == 2 and trials[0] == trials[1] and plan.same_placement(before)


def _wanted(plan: Plan) -> Counter[int]:
    """Trial -> how many of its steps have to count."""
    tuning = plan.tuning
    assert tuning is not None
    return Counter(tuning.at(at) or 0 for at in range(1, tuning.steps + 1) if tuning.counts(at))
