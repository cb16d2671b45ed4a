"""Optimisers on flat vectors, in arithmetic that gives the same bits on every device.

Every step is separate multiplications and additions with scalars rounded once from float64: fused forms
(``add(alpha=)``, ``addcmul``, ``lerp``, torch's fused optimisers) round differently on different devices, and
in gradient mode every member of a group takes this step on its own.
"""

import math
from typing import Protocol

from torch import Tensor

from ..proto.job import Train


class Optimizer(Protocol):
    """Moves ``x`` [numel] by one step along ``grad`` [numel]; its state is the named ``moments`` [numel]."""

    moments: tuple[str, ...]

    def step(self, x: Tensor, grad: Tensor, moments: dict[str, Tensor], count: int, rate: float, decay: Tensor) -> None:
        """``count`` is 1 for the first step with these moments; ``decay`` is 1 where weight decay applies."""


class AdamW:
    """AdamW (Loshchilov and Hutter, 2019), bias corrected, as torch.optim.AdamW computes it."""

    moments: tuple[str, ...] = ("m", "v")

    def __init__(self, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay

    def step(self, x: Tensor, grad: Tensor, moments: dict[str, Tensor], count: int, rate: float, decay: Tensor) -> None:
        first, second = self.betas
        m, v = moments["m"], moments["v"]
        if self.weight_decay:
            x.sub_(x * decay * (rate * self.weight_decay))
        m.mul_(first).add_(grad * (1 - first))
        v.mul_(second).add_(grad * grad * (1 - second))
        # Not divided by the scalar: CUDA multiplies by its reciprocal there, and rounds differently than a CPU.
        denominator = v.sqrt().mul_(1 / math.sqrt(1 - second**count)).add_(self.eps)
        x.sub_((m / denominator).mul_(rate / (1 - first**count)))


class SGD:
    """Stochastic gradient descent with heavy-ball momentum, as torch.optim.SGD computes it."""

    def __init__(self, momentum: float, weight_decay: float) -> None:
        self.momentum, self.weight_decay = momentum, weight_decay
        self.moments: tuple[str, ...] = ("m",) if momentum else ()

    def step(self, x: Tensor, grad: Tensor, moments: dict[str, Tensor], count: int, rate: float, decay: Tensor) -> None:
        if self.weight_decay:
            grad = grad + x * decay * self.weight_decay
        if self.momentum:
            grad = moments["m"].mul_(self.momentum).add_(grad)
        x.sub_(grad * rate)


def make_optimizer(train: Train) -> Optimizer:
    """The job's optimiser."""
    if train.optimizer == "adamw":
        return AdamW(train.betas, train.eps, train.weight_decay)
    if train.optimizer == "sgd":
        return SGD(train.momentum, train.weight_decay)
    raise ValueError(f"not yet: optimizer {train.optimizer!r}")


def learning_rate(train: Train, step: int, steps: int) -> float:
    """The rate of a step (from 1 to ``steps``): linear warm-up, then constant or cosine decay to the floor."""
    if step <= train.warmup_steps:
        return train.learning_rate * step / train.warmup_steps
    done = min(1.0, (step - train.warmup_steps) / max(1, steps - train.warmup_steps))
    if train.decay == "cosine":
        shape = 0.5 * (1 + math.cos(math.pi * done))
    else:
        shape = 1.0
    floor = train.min_learning_rate_ratio
    return train.learning_rate * (floor + (1 - floor) * shape)


def clip_factor(norm: float, clip: float | None) -> float:
    """What to multiply a gradient of this global norm with."""
    if not clip or norm <= clip:
        return 1.0
    return clip / (norm + 1e-6)


def squared_norm(vector: Tensor) -> float:
    """Sum of squares, in float64 because a stage has many of them."""
    return float(vector.double().square().sum())
