"""The learning rate of a step: warm-up, decay and cooldown as ``[train]`` says."""

from __future__ import annotations

import math

from ....job.schema import Train

_SCALE = 10_000
"""Time scale (steps) of the inverse square root decay without a warm-up, as in `transformers`."""


def learning_rate(train: Train, step: int, steps: int) -> float:
    """The rate of step ``step`` (1 to ``steps``): linear warm-up, then the decay, then a linear cooldown to the floor,
    which is ``min_learning_rate_ratio`` times the peak rate."""
    if step <= train.warmup_steps:
        return train.learning_rate * step / train.warmup_steps
    cooldown = cooldown_of(train, steps)
    shape = _decay(train, min(step, steps - cooldown), steps)
    if cooldown and step > steps - cooldown:
        shape *= max(0, steps - step) / cooldown
    floor = train.min_learning_rate_ratio
    return train.learning_rate * (floor + (1 - floor) * shape)


def cooldown_of(train: Train, steps: int) -> int:
    """The number of last steps in which the rate falls to its floor; for "wsd" a tenth of all if the job sets none."""
    cooldown = train.cooldown_steps
    if train.decay == "wsd" and not cooldown:
        cooldown = -(-steps // 10)
    return max(0, min(cooldown, steps - train.warmup_steps))


def _decay(train: Train, step: int, steps: int) -> float:
    """The decay's factor at a step, from 1 down to 0."""
    done = min(1.0, (step - train.warmup_steps) / max(1, steps - train.warmup_steps))
    if train.decay == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    if train.decay == "linear":
        return 1 - done
    if train.decay == "inverse_sqrt":
        scale = train.warmup_steps or _SCALE
        return 1 / math.sqrt((step + scale - train.warmup_steps) / scale)
    return 1.0  # "none", and "wsd" before its cooldown
