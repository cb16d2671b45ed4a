"""AdamW's step in one pass over the memory, compiled for the CPU (the optional extra ``fast``). It gives the bits of
the torch code in optimizers.py, in about a third of its time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ....compress.cpu.loops.base import jit


class Scalars(NamedTuple):
    """The numbers of a step, in fp32."""

    keep_m: np.float32
    take_m: np.float32
    keep_v: np.float32
    take_v: np.float32
    decay: np.float32
    scale: np.float32
    """1 / sqrt(1 - beta2 ** count)."""
    eps: np.float32
    rate: np.float32
    """The learning rate / (1 - beta1 ** count)."""


@jit
def move(x: Any, grad: Any, m: Any, v: Any, by: Any, flags: Any) -> None:
    """Update the moments unless they are frozen, then x -= m / (sqrt(v) * scale + eps) * rate; each operation rounds
    once to fp32. ``by``: Scalars. ``flags``: (whether the weights decay, whether the moments are frozen)."""
    keep_m, take_m, keep_v, take_v, decay, scale, eps, rate = by
    decays, frozen = flags
    for i in range(len(x)):
        if decays:
            x[i] -= x[i] * decay
        if not frozen:
            m[i] = m[i] * keep_m + grad[i] * take_m
            v[i] = v[i] * keep_v + (grad[i] * grad[i]) * take_v
        x[i] -= m[i] / (np.sqrt(v[i]) * scale + eps) * rate
