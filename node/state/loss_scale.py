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
QUICK = 64
"""Steps between doublings, at the least, of a scale that has fallen below the first and has fitted ever since."""


@dataclass(frozen=True)
class LossScale:
    """``scale``: the factor on the loss. ``good``: steps with finite gradients since it changed; below the first scale,
    since it was halved. ``dropped``: the run's steps that were dropped, which the optimiser's bias correction does not
    count."""

    scale: float
    good: int = 0
    dropped: int = 0

    def after(self, finite: bool, patience: int) -> LossScale:
        """The state after a step. A step that is not ``finite`` halves the scale; ``patience`` others in a row double
        it. Below the first scale it doubles again after half as many, and so on down to `QUICK`: whatever it was that
        overflowed is gone, and without this the way back from `LEAST` would take 30 times the patience."""
        if not finite:
            return LossScale(max(LEAST, self.scale / 2), 0, self.dropped + 1)
        if self.scale < FIRST and patience > QUICK:
            scale = self.scale * 2 if is_time(self.good + 1, patience) else self.scale
            return LossScale(scale, self.good + 1 if scale < FIRST else 0, self.dropped)
        if self.good + 1 >= patience:
            return LossScale(min(MOST, self.scale * 2), 0, self.dropped)
        return LossScale(self.scale, self.good + 1, self.dropped)

    def possible(self, steps: int, patience: int) -> LossScale:
        """The nearest state that a run can have after so many steps, of what another node says its state is."""
        dropped = min(self.dropped, steps)
        good = steps - dropped
        most = min(MOST, FIRST * 2.0 ** min(100, good // min(QUICK, patience)))
        least = max(LEAST, FIRST * 2.0 ** -min(100, dropped))
        return LossScale(min(max(self.scale, least), most), min(self.good, good), dropped)

    @property
    def is_least(self) -> bool:
        """Whether the scale cannot become smaller."""
        return self.scale <= LEAST


def is_time(good: int, patience: int) -> bool:
    """Whether a small scale doubles after so many finite steps in a row: ``patience``, half as many more, and so on."""
    at = wait = patience
    while at < good and wait > QUICK:
        wait = max(QUICK, wait // 2)
        at += wait
    return good == at or (good > at and (good - at) % QUICK == 0)


def first_scale(job: Job) -> LossScale | None:
    """The state with which a job's run begins; None where it does not compute in fp16."""
    return LossScale(FIRST) if job.train.precision == "fp16" else None
