"""A node's part in the trials of a view's plan: how this step's share is cut, where the optimiser's moments lie, and
what happens if memory is too small.

Every node knows each step's trial from the plan and the step's number, so the stages of a pipeline cut alike. What a
step computes does not depend on it: the same samples, summed in another order. Moments move with all their bits.
"""

from __future__ import annotations

from typing import NoReturn

import torch

from ....proto import control_pb2
from ....proto.errors import FarflungError
from ....scheduler.trials import Trial
from ....scheduler.workloads.offload import MOMENTS, NONE
from ...device.out_of_memory import is_out_of_memory
from ...state.stage_state import StageState
from ..member.view_member import ViewMember

AGAIN_S = 5.0
"""Seconds after which a node says once more that it could not compute a trial."""


class Trying:
    """The trials of one view on one node."""

    def __init__(self, view: ViewMember, state: StageState) -> None:
        self._view, self._state = view, state
        job, plan = view.job, view.plan
        self._tuning = plan.tuning
        self._usual = Trial(job.train.microbatch_size, None, plan.in_flight, pieces=plan.pieces)
        self.peak = 0
        """The most bytes that were allocated on the device in the last step, if it was a trial; 0: not known."""
        self._had_room = self._stays = False
        """Main memory had room for the moments in this view, and what they took may still be kept for them; the device
        has no room for them any more."""

    @property
    def least(self) -> int:
        """Samples of the smallest microbatch of any step."""
        trials = self._tuning.trials if self._tuning is not None else ()
        return min(one.samples(self._view.pipeline) for one in (self._usual, *trials))

    def size(self, step: int) -> int:
        """Samples of a microbatch of a step."""
        return self._trial(step).samples(self._view.pipeline)

    def in_flight(self, step: int) -> int:
        """How many microbatches this node's stage may have in flight in a step; 0: the schedule's own number."""
        rows = self._trial(step).in_flight
        return rows[self._view.pipeline][self._state.stages[0]] if rows else 0

    def place(self, step: int) -> None:
        """Before a step: the moments move to where it wants them. Raises ViewEnds if it is a trial for which the memory
        there is too small. If the device has no room for them any more, they stay in main memory."""
        kind, state = self._trial(step).offload or self._view.job.train.offload_kind, self._state
        if kind == state.offload or (self._stays and kind == NONE):
            return
        if problem := self._moved(kind, bool(self._index(step))):
            if self._index(step):
                self.failed(step)
            if kind != NONE:
                raise problem
            self._stays = True
            context = self._view.context
            why = "the device has no room for the optimiser's moments any more: they stay in main memory in this view"
            context.warn(context.name, why)

    def _moved(self, kind: str, tried: bool) -> Exception | None:
        """Move the moments; what kept them where they are. ``tried``: main memory that is not free is not taken."""
        moments = sum(one.nbytes for section in self._state.sections.values() for one in section.moments.values())
        resources = self._view.resources
        takes = kind == MOMENTS and resources.owner.offload_folder is None and not self._had_room
        if tried and takes and resources.memory_left() < 2 * moments:  # pinned memory comes in powers of two
            return MemoryError("the machine has too little main memory for the optimiser's moments")
        if self._counts:
            torch.cuda.empty_cache()
        try:
            self._state.move_moments(kind)
        except (RuntimeError, MemoryError, FarflungError) as problem:
            if isinstance(problem, FarflungError) or is_out_of_memory(problem):
                return problem
            raise
        self._had_room = self._had_room or kind == MOMENTS
        return None

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
