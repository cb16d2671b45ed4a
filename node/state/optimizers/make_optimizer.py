"""From a job to its optimiser."""

from __future__ import annotations

from collections.abc import Sequence

from ....job.schema import Job
from ...models.builds import import_build
from .adafactor import Adafactor
from .called import CalledOptimizer
from .muon import Muon
from .optimizers import SGD, AdamW, Lamb, Lion, OneBitAdam, Optimizer


def make_optimizer(job: Job, allow_code: Sequence[str] | None = ()) -> Optimizer:
    """The job's optimiser. ``allow_code``: modules whose functions may be called (None: any).

    Raises:
        FarflungError: ``train.optimizer`` is a function that is not allowed, or whose optimiser cannot be used.
    """
    train = job.train
    if ":" in train.optimizer:
        make = import_build(train.optimizer, "train.optimizer", allow_code)
        return CalledOptimizer(train.optimizer, make, train.learning_rate, train.weight_decay)
    if train.optimizer == "adamw":
        return AdamW(train.betas, train.eps, train.weight_decay)
    if train.optimizer == "lamb":
        return Lamb(train.betas, train.eps, train.weight_decay)
    if train.optimizer == "lion":
        return Lion(train.betas, train.weight_decay)
    if train.optimizer == "muon":
        return Muon(train.betas, train.eps, train.weight_decay)
    if train.optimizer == "adafactor":
        return Adafactor(train.weight_decay)
    if train.optimizer == "onebit_adam":
        return OneBitAdam(train.betas, train.eps, train.weight_decay, job.updates.dense_rounds)
    return SGD(train.momentum, train.weight_decay)
