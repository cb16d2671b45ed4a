"""Collects what a view's nodes report of its trials, until a plan follows from it. Pure: the inputs are reports.

A step takes as long as on the node that reports most seconds of it. A view that ends before all of its trials' steps
were reported decides nothing: the next view of this shape begins them again.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...proto.control_pb2 import StepDone
from ...scheduler.after_trials import Found, decided, found_of, without
from ...scheduler.plans import Plan


@dataclass(frozen=True)
class Verdict:
    """The plan that follows. why: one sentence. anew: a node waits for another view."""

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

    def enter(self, view: int, plan: Plan, step: int) -> None:
        """A view of this number begins after ``step``."""
        open_ = plan.tuning is not None and bool(plan.tuning.trials)
        self._view, self._plan, self._begin, self._steps = view, plan if open_ else None, step, {}

    def step(self, node: str, report: StepDone) -> Verdict | None:
        """A node's report of a step; the verdict, once, after the last step that it needs."""
        plan = self._plan
        if plan is None or plan.tuning is None or report.view != self._view or node not in plan:
            return None
        at = report.step - self._begin
        if not 0 < at <= plan.tuning.steps:
            return None
        known = self._steps.setdefault(at, {})
        known[node] = (report.seconds, report.peak_bytes)
        if len(self._steps) < plan.tuning.steps or any(len(one) < len(plan.nodes) for one in self._steps.values()):
            return None
        self._plan, best = None, decided(plan, self._found(plan))
        assert best.tuning is not None
        return Verdict(best, best.tuning.why)

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

    def _found(self, plan: Plan) -> dict[int, Found]:
        assert plan.tuning is not None
        counted: dict[int, list[tuple[float, int]]] = {}
        for at in filter(plan.tuning.counts, range(1, plan.tuning.steps + 1)):
            reported = self._steps[at].values()
            whole = max(seconds for seconds, _ in reported), max(peak for _, peak in reported)
            counted.setdefault(plan.tuning.at(at) or 0, []).append(whole)
        return {index: found_of(steps) for index, steps in counted.items()}
