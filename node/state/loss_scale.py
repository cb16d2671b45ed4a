"""The loss scale of a run in fp16 (Micikevicius et al., 2018), as torch.amp.GradScaler moves it.

Gradients of a loss times the scale stay within fp16's range, where those of the loss itself would become 0. A step
whose gradients are not finite on any member of its commit point is dropped by all of them, and each member moves its
scale by the same event; so members agree on it without a message. (In delta mode they are one pipeline's nodes, and
each pipeline has a scale of its own.) The scale is a power of two: to divide by it again changes no bit of a gradient
that fp32 can hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...job.schema import Job
from ...proto.words.loss_scale import LEAST, MOST

FIRST = 2.0**16
"""As torch.amp.GradScaler begins. Where it is too large the first steps are dropped, until it fits."""


@dataclass(frozen=True)
class LossScale:
    """``scale``: the factor on the loss. ``good``: steps since it changed, all with finite gradients. ``dropped``: the
    run's steps that were dropped, which the optimiser's bias correction does not count."""

    scale: float
    good: int = 0
    dropped: int = 0

    def after(self, finite: bool, patience: int) -> LossScale:
        """The state after a step. A step that is not ``finite`` halves the scale; ``patience`` others in a row double
        it."""
        if not finite:
            return LossScale(max(LEAST, self.scale / 2), 0, self.dropped + 1)
        if self.good + 1 >= patience:
            return LossScale(min(MOST, self.scale * 2), 0, self.dropped)
        return LossScale(self.scale, self.good + 1, self.dropped)

    @property
    def is_least(self) -> bool:
        """Whether the scale cannot become smaller."""
        return self.scale <= LEAST


def first_scale(job: Job) -> LossScale | None:
    """The state with which a job's run begins; None where it does not compute in fp16."""
    return LossScale(FIRST) if job.train.precision == "fp16" else None
