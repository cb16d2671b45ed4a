"""Adds up what the nodes report of each step and each evaluation. No I/O: reports in, finished rows out."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....proto.control_pb2 import EvalDone, Ledger, StepDone
from ....scheduler.plans import Plan
from ...store.rows import EvalRow, SetRow, StepRow


@dataclass
class _Open:
    """Reports of one step or evaluation so far, by node."""

    reports: dict[str, Any] = field(default_factory=dict)


class Progress:
    """The sums of the present view.

    A step is finished when every node of the plan has reported it; at the end of the view, steps are closed with the
    reports that are there. An evaluation needs the last node of every pipeline. Repeated reports (a node that lost its
    stream repeats those that may not have arrived) count once.
    """

    def __init__(self, whole: int = 0, sets: Sequence[str] = ()) -> None:
        """``whole``: samples of a step in ``gradient`` mode, in which a step is finished for all nodes or for none, so
        that its number of samples is known; 0 where every pipeline finishes steps independently. ``sets``: names of the
        evaluation sets."""
        self._whole, self._sets = whole, tuple(sets)
        self._finished = self._evaluated = 0
        self._view = 0
        self._nodes: frozenset[str] = frozenset()
        self._last: frozenset[str] = frozenset()
        self._steps: dict[int, _Open] = {}
        self._evals: dict[int, _Open] = {}

    def restore(self, view: int, plan: Plan, finished: int, evaluated: int) -> None:
        """Continue a view of an earlier coordinator, which had stored steps and evaluations up to these."""
        self.enter(view, plan, finished, 0.0)
        self._evaluated = evaluated

    def enter(self, view: int, plan: Plan, step: int, now: float) -> list[StepRow]:
        """A new view continues after ``step``: open steps up to it are closed with the reports so far, later ones are
        void."""
        open_steps = set(self._steps)
        if self._whole and self._view:
            open_steps |= set(range(self._finished + 1, step + 1))
        rest = [self._sum(number, now) for number in sorted(open_steps) if number <= step]
        self._finished, self._evaluated = step, min(self._evaluated, step)
        self._view, self._steps, self._evals = view, {}, {}
        self._nodes = frozenset(plan.nodes)
        self._last = frozenset(pipeline[-1] for pipeline in plan.pipelines)
        return rest

    def is_new(self, name: str, report: StepDone) -> bool:
        """Whether this is a report of the present view that was not counted before."""
        if report.view != self._view or name not in self._nodes or report.step <= self._finished:
            return False
        return report.step not in self._steps or name not in self._steps[report.step].reports

    def step(self, name: str, report: StepDone, now: float) -> list[StepRow]:
        """A node's step; the rows of the steps that are finished with it, in order."""
        if not self.is_new(name, report):
            return []
        self._steps.setdefault(report.step, _Open()).reports[name] = report
        if len(self._steps[report.step].reports) < len(self._nodes):  # some nodes have not reported it
            return []
        row = self._sum(report.step, now)
        del self._steps[report.step]
        self._finished = report.step
        return [row]

    @property
    def ledger(self) -> Ledger:
        """The last step of this view whose row is finished."""
        return Ledger(view=self._view, step=self._finished, eval=self._evaluated)

    def evaluation(self, name: str, report: EvalDone, now: float) -> tuple[EvalRow, list[SetRow]] | None:
        """A last stage's evaluation. Returns its rows when all pipelines have reported and there is a loss. Where no
        training data are held out, the first set's loss is the evaluation's."""
        if report.view != self._view or name not in self._last or report.step <= self._evaluated:
            return None
        reports = self._evals.setdefault(report.step, _Open()).reports
        reports[name] = report
        if self._last - set(reports):
            return None
        del self._evals[report.step]
        self._evaluated = report.step
        sets = self._set_rows(report.step, list(reports.values()))
        tokens = sum(one.tokens for one in reports.values())
        predictions = sum(one.predictions for one in reports.values())
        accuracy = sum(one.correct for one in reports.values()) / predictions if predictions else None
        loss = sum(one.loss_sum for one in reports.values()) / max(1, tokens)
        if not tokens and sets:
            tokens, loss, accuracy = sets[0].tokens, sets[0].loss, sets[0].accuracy
        return (EvalRow(report.step, loss, tokens, accuracy, now), sets) if math.isfinite(loss) else None

    def _set_rows(self, step: int, reports: Sequence[EvalDone]) -> list[SetRow]:
        rows = []
        for number, name in enumerate(self._sets, 1):
            found = [one for report in reports for one in report.sets if one.number == number]
            tokens, loss = sum(one.tokens for one in found), sum(one.loss_sum for one in found)
            if tokens and math.isfinite(loss):
                accuracy = sum(one.correct for one in found) / tokens
                rows.append(SetRow(step, name, loss / tokens, accuracy, tokens))
        return rows

    def lacks_evaluation(self, every: int) -> bool:
        """Whether the previous view ended between a step and the evaluation due after it."""
        return bool(every) and self._finished - self._finished % every > self._evaluated

    def _sum(self, step: int, now: float) -> StepRow:
        found: dict[str, StepDone] = self._steps[step].reports if step in self._steps else {}
        reports: Iterable[StepDone] = found.values()
        tokens, loss = sum(one.tokens for one in reports), sum(one.loss_sum for one in reports)
        notes = _notes_of(found)
        return StepRow(
            step,
            self._view,
            loss / tokens if tokens and math.isfinite(loss) else None,
            self._whole or sum(one.samples for one in reports),
            tokens,
            max((one.seconds for one in reports), default=0.0),
            bytes_updates=sum(one.bytes_updates for one in reports),
            bytes_activations=sum(one.bytes_activations for one in reports),
            bytes_other=sum(one.bytes_other for one in reports),
            bytes_dense=sum(one.bytes_dense for one in reports),
            bytes_dense_updates=sum(one.bytes_dense_updates for one in reports),
            notes=json.dumps(notes) if notes else "",
            time=now,
        )


def _notes_of(reports: Mapping[str, StepDone]) -> dict[str, Any]:
    """The notes in the reports, merged. They come from nodes, so those that are not JSON are left out."""
    notes = {}
    for name, one in reports.items():
        with contextlib.suppress(ValueError):
            notes[name] = json.loads(one.notes)
    return notes
