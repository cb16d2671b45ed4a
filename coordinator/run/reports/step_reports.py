"""What nodes report of steps and evaluations: added up (ledger.py), stored, and shown."""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path

from ....job.chosen import microbatch_of
from ....proto import control_pb2 as pb
from ....proto.words.border import printable
from ... import events
from ...membership import signals as s
from ...observe.history import POINTS, History, Point
from ...observe.observed import Observed
from ...observe.useful_work import UsefulWork, ledger, write_ledger
from ...planning.measured import Measured
from ...planning.tuner import Verdict
from ...store.rows import StepRow
from ..context import RunContext
from ..deciding import Deciding
from ..warnings import Warn
from .how_far import last_step, reached
from .ledger import Progress

_DIVERGED = "the loss is not finite any more: go back to an older checkpoint with another learning rate"


class StepReports:
    """Takes reports of steps and evaluations. ``observed``, ``history`` and ``work`` are read by the metrics, the page
    and the ledger of useful work."""

    def __init__(self, context: RunContext, deciding: Deciding, measured: Measured, warn: Warn) -> None:
        self._context, self._deciding, self._measured, self._warn = context, deciding, measured, warn
        store, job = context.store, context.job
        self.observed = Observed()
        self.history = History((Point.of(row) for row in store.steps.curve(POINTS)), store.evals.all())
        self.work = UsefulWork(store.work.done(), store.work.scores())
        self._progress = Progress(
            job.train.batch if job.updates.mode == "gradient" else 0, [name for name, _ in context.facts.sets]
        )
        self.bytes = int(store.get("bytes") or 0)
        """Bytes sent by all nodes since the run began."""
        self._pending: dict[str, pb.StepDone] = {}
        """Reports of the last step from flushed nodes that did not know whether it was committed."""
        if (view := deciding.state.view) is not None:
            known, evaluated = store.steps.newest(1), store.evals.newest(1)
            finished = max(view.position.step, known[-1].step if known else 0)
            self._progress.restore(view.number, view.plan, finished, evaluated[-1].step if evaluated else 0)

    # ---- reports -------------------------------------------------------------------------------

    def step(self, name: str, session: str, report: pb.StepDone) -> None:
        """A node has finished a step."""
        self._check_loss(report)
        if self._progress.is_new(name, report):
            now = self._context.clock()
            self.bytes += report.bytes_updates + report.bytes_activations + report.bytes_other
            self.observed.step(name, report, now)
            self._measured.step(name, report, now)
            self._worked(name)
        self._deciding.stepped(s.StepFinished(name, session, report.view, report.step, report.seconds))
        self._keep(self._progress.step(name, report, time.time()))
        self._tuned(self._measured.tuner.step(name, report, max(0, self.last_step - report.step)))

    def trial_failed(self, name: str, report: pb.TrialFailed) -> None:
        """A node could not compute a trial of the view's plan."""
        why = printable(report.why) or "could not compute it"
        self._tuned(self._measured.tuner.failed(name, report.view, report.step, why))

    def evaluation(self, name: str, report: pb.EvalDone) -> bool:
        """A node has evaluated its pipeline. Returns whether this completes the evaluation."""
        self._check_loss(report)
        found = self._progress.evaluation(name, report, time.time())
        if found is not None:
            row, sets = found
            self._context.store.evals.put(row)
            self._context.store.evals.put_sets(sets)
            self.history.evaluation(row)
            self._context.emit(events.evaluation(row, sets))
        return found is not None

    def pending(self, name: str, report: pb.StepDone) -> None:
        """A flushed node's report of a step that counts only if the next view begins after it."""
        self._pending[name] = report

    def enter(self, view: s.Announcement) -> None:
        """A new view is about to be announced: steps up to its position are closed, later ones are void."""
        position = view.position
        self._context.store.put("steps", str(self.last_step))
        self._measured.enter(view.plan, self._context.clock())
        self._measured.tuner.enter(view.number, view.plan, position.step)
        for name, done in self._pending.items():
            if done.step == position.step and view.checkpoint < 0:  # committed after all
                self._keep(self._progress.step(name, done, time.time()))
        self._pending = {}
        self._keep(self._progress.enter(view.number, view.plan, position.step, time.time()))

    def store_work(self) -> None:
        """Store the changed rows of the ledger of useful work, and rewrite its file beside the database."""
        store = self._context.store
        store.work.put(*self.work.unsaid())
        if isinstance(store.place, Path):
            with contextlib.suppress(OSError):  # a full disk is reported elsewhere; the database has all rows
                write_ledger(store.place, ledger(store.work.done(), store.work.scores()))

    # ---- how far -------------------------------------------------------------------------------

    @property
    def ledger(self) -> pb.Ledger:
        """The last step of this view whose row is complete."""
        return self._progress.ledger

    @property
    def stored_ledger(self) -> pb.Ledger | None:
        """The same, once all of it is in the database; else None."""
        store = self._context.store
        return self.ledger if store.leads and not store.is_behind else None

    @property
    def last_step(self) -> int:
        """The run's last step."""
        return last_step(self._deciding.state, self._context.job, self._context.facts)

    @property
    def reached(self) -> int:
        """The step that the view has finished."""
        return reached(self._deciding.state, self.ledger, self._context.job)

    @property
    def step_seconds(self) -> float:
        """Seconds of the last step; 1 before the first."""
        known = self._context.store.steps.newest(1)
        return known[-1].seconds if known else 1.0

    @property
    def lacks_evaluation(self) -> bool:
        """Whether the previous view ended between a step and the evaluation due after it."""
        return self._progress.lacks_evaluation(self._context.job.train.eval_every)

    # ---- inside --------------------------------------------------------------------------------

    def _check_loss(self, report: pb.StepDone | pb.EvalDone) -> None:
        if not math.isfinite(report.loss_sum):
            self._warn("", _DIVERGED)

    def _tuned(self, verdict: Verdict | None) -> None:
        """The machine takes over what the trials of the view have shown."""
        view = self._deciding.state.view
        if verdict is not None and view is not None:
            self._deciding.feed(s.Tuned(view.number, verdict.plan, verdict.why, verdict.anew))

    def _worked(self, name: str) -> None:
        """Count a node's step in the ledger, with the samples that the plan gave its pipeline."""
        view = self._deciding.state.view
        if view is not None and name in view.plan.nodes:
            pipeline = view.plan.pipeline_of(name)
            samples = view.plan.microbatches[pipeline] * microbatch_of(self._context.job, view.plan.chosen)
            self.work.step(name, samples, time.time())

    def _keep(self, rows: list[StepRow]) -> None:
        """Store and show steps that are complete."""
        store = self._context.store
        for row in rows:
            store.steps.put(row)
            self._measured.claims.step(self._context.clock())
            self.history.step(row, self.observed.parts_of_step(row.step))
            store.put("bytes", str(self.bytes))
            self._context.emit(events.step(row, self.last_step))
