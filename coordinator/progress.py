"""Adds up what the nodes report of each step and each evaluation. No I/O: reports in, finished rows out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..proto.control_pb2 import EvalDone, StepDone
from ..scheduler.plans import Plan
from .store import EvalRow, StepRow


@dataclass
class _Open:
    """Reports of one step or evaluation so far, by node."""

    reports: dict[str, Any] = field(default_factory=dict)


class Progress:
    """The sums of the present view.

    A step is finished when every node of the plan has reported it; what is missing when the view ends is taken as it
    is. An evaluation needs the last node of every pipeline.
    """

    def __init__(self) -> None:
        self._view = 0
        self._nodes: frozenset[str] = frozenset()
        self._last: frozenset[str] = frozenset()
        self._steps: dict[int, _Open] = {}
        self._evals: dict[int, _Open] = {}

    def enter(self, view: int, plan: Plan, step: int, now: float) -> list[StepRow]:
        """A new view goes on after ``step``: open steps up to it are closed as they are, later ones are void."""
        rest = [self._sum(number, now) for number in sorted(self._steps) if number <= step]
        self._view, self._steps, self._evals = view, {}, {}
        self._nodes = frozenset(plan.nodes)
        self._last = frozenset(pipeline[-1] for pipeline in plan.pipelines)
        return rest

    def step(self, name: str, report: StepDone, now: float) -> list[StepRow]:
        """A node's step; the rows of the steps that are finished with it, in order."""
        if report.view != self._view or name not in self._nodes:
            return []
        self._steps.setdefault(report.step, _Open()).reports[name] = report
        if self._nodes - set(self._steps[report.step].reports):
            return []
        row = self._sum(report.step, now)
        del self._steps[report.step]
        return [row]

    def evaluation(self, name: str, report: EvalDone, now: float) -> EvalRow | None:
        """A last stage's evaluation; the row when all pipelines have reported."""
        if report.view != self._view or name not in self._last:
            return None
        reports = self._evals.setdefault(report.step, _Open()).reports
        reports[name] = report
        if self._last - set(reports):
            return None
        del self._evals[report.step]
        tokens = sum(one.tokens for one in reports.values())
        predictions = sum(one.predictions for one in reports.values())
        accuracy = sum(one.correct for one in reports.values()) / predictions if predictions else None
        loss = sum(one.loss_sum for one in reports.values()) / max(1, tokens)
        return EvalRow(report.step, loss, tokens, accuracy, now)

    def _sum(self, step: int, now: float) -> StepRow:
        reports: Iterable[StepDone] = self._steps[step].reports.values()
        tokens = sum(one.tokens for one in reports)
        notes = {name: json.loads(one.notes) for name, one in self._steps[step].reports.items() if _is_json(one.notes)}
        return StepRow(
            step,
            self._view,
            sum(one.loss_sum for one in reports) / tokens if tokens else None,
            sum(one.samples for one in reports),
            tokens,
            max(one.seconds for one in reports),
            sum(one.bytes_updates for one in reports),
            sum(one.bytes_activations for one in reports),
            sum(one.bytes_other for one in reports),
            sum(one.bytes_dense for one in reports),
            sum(one.bytes_dense_updates for one in reports),
            json.dumps(notes) if notes else "",
            now,
        )


def _is_json(text: str) -> bool:
    """Notes come from nodes; what is no JSON is left out."""
    if not text:
        return False
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
