"""Optimisers on flat vectors, in arithmetic that gives the same bits on every device.

Every step consists of separate multiplications and additions with scalars that are rounded once from float64: fused
forms (``add(alpha=)``, ``addcmul``, ``lerp``, torch's fused optimisers) round differently on different devices, and in
gradient mode every member of a group computes this step itself. A step goes stretch by stretch, so that on a CPU its
operands stay in the cache.
"""

import importlib
import math
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from .... import compress
from ....compress.cpu import dispatch as fast
from ....job.schema import Job
from ..sections import vectors
from ..sections.moments import STRETCH, Kept
from ..sections.section import Section, Stretch
from . import adamw_fused


class Optimizer(Protocol):
    """Moves a section's ``x`` [numel] by one step along its ``grad``; its state is the named ``moments`` [numel].

    Matrices are decayed, biases and norms are not.
    """

    moments: tuple[str, ...]
    factored: bool
    """Whether a matrix's moments are means of its rows and columns (proto/words/moments.py)."""

    def offer(self, section: Section, count: int, share: float) -> None:
        """Gradient mode: turn this node's gradient, in place, into the vector that the group sums. ``share``: the
        node's share of the batch, by which it weights terms that all members add; a section's members' shares sum to
        1."""

    def clips(self, count: int) -> bool:
        """Whether the vector that the group summed is a gradient, which may be clipped by its norm."""

    def step(self, section: Section, count: int, rate: float) -> None:
        """Take one step. ``count`` is 1 for the first step with these moments; ``rate``: the learning rate."""


class OfGradients:
    """An optimiser whose group sums the gradients themselves."""

    factored = False

    def offer(self, section: Section, count: int, share: float) -> None:
        """The gradient stays as it is."""

    def clips(self, count: int) -> bool:
        return True


class AdamW(OfGradients):
    """AdamW (Loshchilov and Hutter, 2019), bias corrected, as torch.optim.AdamW computes it."""

    moments: tuple[str, ...] = ("m", "v")

    def __init__(self, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay

    def step(self, section: Section, count: int, rate: float) -> None:
        if adamw_fused.takes(section):
            adamw_fused.step(section, count, rate, self.betas, self.eps, self.weight_decay)
            return
        move = self._mover(section, rate, count, count)
        for here in section.stretches(count):
            move(here)

    def _mover(
        self, section: Section, rate: float, count: int, squares: int, frozen: bool = False
    ) -> Callable[[Stretch], None]:
        """A function that takes this step for one stretch of a section; see ``_step``."""
        first, second = self.betas
        decays, decay = bool(self.weight_decay), rate * self.weight_decay

        def move(here: Stretch) -> None:
            if decays and here.is_matrix:
                here.x.sub_(here.x * decay)
            here.x.sub_(self._step(here, rate, count, squares, frozen))

        if section.x.device.type != "cpu" or not fast.worth(section.x.numel()):
            return move
        compiled: Any = importlib.import_module(".adamw_cpu", __package__)
        scale = 1 / math.sqrt(1 - second**squares)
        of_moments = (first, 1 - first, second, 1 - second)
        of_weights = (decay, scale, self.eps, rate / (1 - first**count))
        scalars = compiled.Scalars(*map(np.float32, of_moments + of_weights))

        def move_compiled(here: Stretch) -> None:
            vectors = (one.numpy() for one in (here.x, here.grad, here.moments["m"], here.moments["v"]))
            compiled.move(*vectors, scalars, (decays and here.is_matrix, frozen))

        return move_compiled

    def _step(self, here: Stretch, rate: float, count: int, squares: int, frozen: bool = False) -> Tensor:
        """Adam's step (without weight decay), with bias corrections for ``count`` gradients in m and ``squares`` in
        v."""
        first, second = self.betas
        m, v = here.moments["m"], here.moments["v"]
        if not frozen:
            m.mul_(first).add_(here.grad * (1 - first))
            v.mul_(second).add_((here.grad * here.grad).mul_(1 - second))
        # Multiplied by the reciprocal: CUDA divides by a scalar in that way, and rounds differently from a CPU.
        denominator = root(v).mul_(1 / math.sqrt(1 - second**squares)).add_(self.eps)
        return torch.div(m, denominator, out=denominator).mul_(rate / (1 - first**count))


class Lamb(AdamW):
    """LAMB (You et al., 2020): Adam's step with its weight decay, scaled for each parameter by |x| / |step|."""

    def step(self, section: Section, count: int, rate: float) -> None:
        for here in section.stretches(count, whole=True):
            step = self._step(here, 1.0, count, count)
            if self.weight_decay and here.is_matrix:
                step.add_(here.x * self.weight_decay)
            of_weights, of_step = norm(here.x), norm(step)
            ratio = of_weights / of_step if of_weights > 0 and of_step > 0 else 1.0
            here.x.sub_(step.mul_(rate * ratio))


class OneBitAdam(AdamW):
    """1-bit Adam (Tang et al., 2021): AdamW for ``freeze`` steps; then the second moment is frozen, and the group
    averages momenta, which a one-bit codec carries well. A coordinate whose second moment is zero no longer moves,
    since one bit cannot encode zero. After the freeze nothing is clipped: the gradient's norm is not known any more."""

    def __init__(self, betas: tuple[float, float], eps: float, weight_decay: float, freeze: int) -> None:
        super().__init__(betas, eps, weight_decay)
        self.freeze = freeze

    def offer(self, section: Section, count: int, share: float) -> None:
        if count > self.freeze:
            first = self.betas[0]
            for here in section.stretches(count):
                here.grad.mul_(1 - first).add_(here.moments["m"] * (first * share))

    def clips(self, count: int) -> bool:
        return count <= self.freeze

    def step(self, section: Section, count: int, rate: float) -> None:
        frozen = count > self.freeze
        move = self._mover(section, rate, count, min(count, self.freeze), frozen)
        for here in section.stretches(count):
            if frozen:
                m, v = here.moments["m"], here.moments["v"]
                m.copy_(torch.where(v > 0, here.grad, torch.zeros_like(m)))
            move(here)


class Lion(OfGradients):
    """Lion (Chen et al., 2023): a step of equal size in every coordinate, with the sign of an interpolated momentum."""

    moments: tuple[str, ...] = ("m",)

    def __init__(self, betas: tuple[float, float], weight_decay: float) -> None:
        self.betas, self.weight_decay = betas, weight_decay

    def step(self, section: Section, count: int, rate: float) -> None:
        first, second = self.betas
        for here in section.stretches(count):
            m = here.moments["m"]
            if self.weight_decay and here.is_matrix:
                here.x.sub_(here.x * (rate * self.weight_decay))
            here.x.sub_((m * first).add_(here.grad * (1 - first)).sign_().mul_(rate))
            m.mul_(second).add_(here.grad * (1 - second))


class SGD(OfGradients):
    """Stochastic gradient descent with heavy-ball momentum, as torch.optim.SGD computes it."""

    def __init__(self, momentum: float, weight_decay: float) -> None:
        self.momentum, self.weight_decay = momentum, weight_decay
        self.moments: tuple[str, ...] = ("m",) if momentum else ()

    def step(self, section: Section, count: int, rate: float) -> None:
        for here in section.stretches(count):
            grad = here.grad
            if self.weight_decay and here.is_matrix:
                grad = grad + here.x * self.weight_decay
            if self.momentum:
                grad = here.moments["m"].mul_(self.momentum).add_(grad)
            here.x.sub_(grad * rate)


def step_all(optimizer: Optimizer, sections: Iterable[Section], count: int, rate: float, factor: float) -> None:
    """Take a step in each of ``sections`` with their gradients times ``factor``, which changes them."""
    for section in sections:
        if factor != 1.0:
            section.grad.mul_(factor)
        optimizer.step(section, count, rate)


def kept_moments(job: Job, optimizer: Optimizer, folder: Path | None = None) -> Kept:
    """How the job wants the optimiser's moments to be kept. ``folder``: where this node keeps those that the job
    offloads; None: in main memory."""
    dtype = torch.bfloat16 if job.train.moments == "bf16" else torch.float32
    return Kept(optimizer.moments, dtype, job.train.offload_kind != "none", optimizer.factored, folder)


def clip_factor(norm: float, clip: float | None) -> float:
    """The factor that clips a gradient of global norm ``norm`` to norm ``clip`` (None or 0: no clipping)."""
    if not clip or norm <= clip:
        return 1.0
    return clip / (norm + 1e-6)


def root(values: Tensor) -> Tensor:
    """The correctly rounded square root. (torch's on a CPU may be MKL's, whose last bit is sometimes wrong.)"""
    return torch.from_numpy(np.sqrt(values.numpy())) if values.device.type == "cpu" else values.sqrt()


def squared_norm(vector: Tensor) -> float:
    """Sum of squares of fp32 [n], with a relative error of about 1e-6; the last bits depend on the processor."""
    if vector.device.type == "cpu":
        pieces = torch.split(vector, STRETCH)
        quick = math.fsum(float(torch.dot(piece, piece)) for piece in pieces)  # a stage has too many for one fp32 sum
        if 1e-20 < quick < math.inf:  # else squares may leave fp32's range although the values do not
            return quick
        return math.fsum(float(piece.double().square().sum()) for piece in pieces)
    # Piece by piece on a device that has float64: the vector in it and its squares would be four more of its length.
    home = compress.home(vector.device)
    sums = [piece.to(home).double().square_().sum() for piece in torch.split(vector, vectors.PIECE)]
    return float(torch.stack(sums).sum()) if sums else 0.0  # one wait for the device


def squares_of(sections: Iterable[Section], names: Collection[str], alone: Collection[str] = ()) -> dict[str, float]:
    """The squared norm of the gradient of each of ``sections`` that is in ``names``. Those ``alone`` have no other
    member any more: their error feedback, which nobody will be sent, first joins the gradient."""
    found = {}
    for section in sections:
        name = section.layout.section
        if name in alone:
            section.use_feedback()
        if name in names:
            found[name] = squared_norm(section.grad)
    return found


def norm(vector: Tensor) -> float:
    """The Euclidean norm, computed as a sum of integers: the same bits on every device and in any order."""
    vector = vector.to(compress.home(vector.device))
    top = float(vector.abs().max()) if vector.numel() else 0.0
    if not 0 < top < math.inf:
        return top
    exponent = math.frexp(top)[1]
    scale = 62 - vector.numel().bit_length()
    small = vector.double() * math.ldexp(1.0, -exponent)
    squares = (small * small * 2.0**scale).round().to(torch.int64).sum()
    return math.ldexp(math.sqrt(math.ldexp(float(squares), -scale)), exponent)
