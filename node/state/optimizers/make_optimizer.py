"""From a job to its optimiser."""

from __future__ import annotations

from ....job.schema import Job
from .muon import Muon
from .optimizers import SGD, AdamW, Lamb, Lion, OneBitAdam, Optimizer


def make_optimizer(job: Job) -> Optimizer:
    """The job's optimiser."""
    train = job.train
    if train.optimizer == "adamw":
        return AdamW(train.betas, train.eps, train.weight_decay)
    if train.optimizer == "lamb":
        return Lamb(train.betas, train.eps, train.weight_decay)
    if train.optimizer == "lion":
        return Lion(train.betas, train.weight_decay)
    if train.optimizer == "muon":
        return Muon(train.betas, train.eps, train.weight_decay)
    if train.optimizer == "onebit_adam":
        return OneBitAdam(train.betas, train.eps, train.weight_decay, job.updates.dense_rounds)
    return SGD(train.momentum, train.weight_decay)
