"""A node's part in the trials of a view's plan: how this step's share is cut, and what happens if memory is too small.

Every node knows each step's trial from the plan and the step's number, so the stages of a pipeline cut alike. What a
step computes does not depend on it: the same samples, summed in another order.
"""

from __future__ import annotations

from typing import NoReturn

import torch

from ....proto import control_pb2
from ....scheduler.trials import Trial
from ...state.stage_state import StageState
from ..member.view_member import ViewMember

AGAIN_S = 5.0
"""Seconds after which a node says once more that it could not compute a trial."""
_SAYS = ("out of memory", "can't allocate memory", "not enough memory", "STATUS_ALLOC_FAILED")
"""The last one is what libraries of CUDA say, for which torch has a plain RuntimeError."""


class Trying:
    """The trials of one view on one node."""

    def __init__(self, view: ViewMember, state: StageState) -> None:
        self._view, self._state = view, state
        job, plan = view.job, view.plan
        self._tuning = plan.tuning
        self._usual = Trial(job.train.microbatch_size // plan.pieces_of(view.pipeline), None, plan.in_flight)
        self.peak = 0
        """The most bytes that were allocated on the device in the last step, if it was a trial; 0: not known."""

    @property
    def least(self) -> int:
        """Samples of the smallest microbatch of any step."""
        trials = self._tuning.trials if self._tuning is not None else ()
        return min([self._usual.microbatch, *(one.microbatch for one in trials)])

    def size(self, step: int) -> int:
        """Samples of a microbatch of a step."""
        return self._trial(step).microbatch

    def in_flight(self, step: int) -> int:
        """How many microbatches this node's stage may have in flight in a step; 0: the schedule's own number."""
        rows = self._trial(step).in_flight
        return rows[self._view.pipeline][self._state.stages[0]] if rows else 0

    def begin(self, step: int) -> None:
        """A step begins."""
        at = self._index(step)
        if at is not None:
            if (again := self._trial(step).recompute) is not None:
                for model in self._state.models:
                    model.recompute = again
            if self._counts:
                torch.cuda.reset_peak_memory_stats(self._view.context.device)
        elif self._index(step - 1) is not None:
            self._state.obey(self._view.plan)

    def end(self, step: int) -> None:
        """A step's passes are computed."""
        counts = self._counts and self._index(step) is not None
        self.peak = torch.cuda.max_memory_allocated(self._view.context.device) if counts else 0

    def may_fail(self, step: int, problem: BaseException) -> bool:
        """Whether an error means that this step's trial, which is not the plan's own choice, takes too much memory."""
        return bool(self._index(step)) and is_out_of_memory(problem)

    def failed(self, step: int) -> NoReturn:
        """The step's trial took too much memory: tell the coordinator, and wait for the view without it, in which the
        step is computed again. Raises ViewEnds."""
        context, wire = self._view.context, self._view.context.wire
        wire.doing = f"has too little memory for a trial in step {step}"
        context.tell(f"step {step} tried {self._trial(step).name}, for which the memory is too small: it is given up")
        if self._counts:
            torch.cuda.empty_cache()
        said = control_pb2.TrialFailed(view=context.view, step=step, why="has too little memory for it")
        with context.clock.span("wait for a view"):
            while True:
                context.report(control_pb2.Report(trial_failed=said))
                for _ in range(10):
                    context.pump(AGAIN_S / 10)

    @property
    def _counts(self) -> bool:
        return self._view.context.device.type == "cuda" and torch.cuda.is_available()

    def _index(self, step: int) -> int | None:
        return None if self._tuning is None else self._tuning.at(step - self._view.position.step)

    def _trial(self, step: int) -> Trial:
        at = self._index(step)
        return self._usual if at is None or self._tuning is None else self._tuning.trials[at]


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether an error is an allocator's refusal. torch has a class of its own for devices' memory alone."""
    if isinstance(problem, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(problem, RuntimeError) and any(words in str(problem) for words in _SAYS)
