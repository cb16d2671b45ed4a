"""``[eval] patience``: ends the run when its evaluations do not improve any more."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ....proto.errors import FarflungError
from ..context import RunContext
from ..people.commands import Command
from ..reports.step_reports import StepReports
from ..warnings import Warn

SOON_S = 2.0
"""Seconds from the decision to the run's last step: longer than telling all nodes takes."""


def best_of(evals: Sequence[tuple[int, float]]) -> tuple[int, float]:
    """The evaluation (step, loss) with the lowest loss, of equal ones the first."""
    return min(evals, key=lambda one: one[1])


def worn_out(evals: Sequence[tuple[int, float]], patience: int) -> str:
    """Why a run with these evaluations (step, loss), oldest first, is to end; empty while it is to go on."""
    if not patience or not evals:
        return ""
    best = best_of(evals)
    since = len(evals) - 1 - evals.index(best)
    if since < patience:
        return ""
    times = "evaluation" if patience == 1 else f"{patience} evaluations"
    return f"in {times} the validation loss was never below the {best[1]:.4f} of step {best[0]} (eval.patience)"


def last_step(reached: int, step_s: float, steps: int) -> int | None:
    """The last step for a run that has reached a step, late enough that every node hears of it before; None where the
    run ends as early anyway."""
    wanted = reached + 1 + math.ceil(SOON_S / max(step_s, 1e-3))
    return wanted if wanted < steps else None


class EarlyStop:
    """Ends the run. ``command``: performs a person's command."""

    def __init__(self, context: RunContext, steps: StepReports, command: Callable[[Command], str], warn: Warn) -> None:
        self._context, self._steps, self._command, self._warn = context, steps, command, warn
        self._ended = False

    def evaluated(self) -> None:
        """An evaluation is complete: end the run if its patience is used up."""
        patience = self._context.job.eval.patience
        if self._ended or not patience:
            return
        evals = [(row.step, row.loss) for row in self._context.store.evals.all()]
        if not (why := worn_out(evals, patience)):
            return
        last = last_step(self._steps.reached, self._steps.step_seconds, self._steps.last_step)
        if last is None:
            return
        try:
            self._command(Command("set", argument=f"run.steps={last}", why=why))
            self._ended = True
        except FarflungError as error:
            self._warn("", f"{why}, and yet the run goes on: {error.message}")
