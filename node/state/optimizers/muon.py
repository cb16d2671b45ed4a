"""Muon (Jordan et al., 2024) for the matrices of a model's blocks; AdamW for all else."""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor

from ..sections.section import Section, Stretch
from .optimizers import AdamW

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5
_EPS = 1e-7
_IN_BLOCK = re.compile(r"(^|\.)\d+\.")  # "model.layers.0.mlp.up_proj.weight"


class Muon(AdamW):
    """A matrix moves by its orthogonalised Nesterov momentum, times 0.2 sqrt(its longer side), so that a step is as
    large as AdamW's (Liu et al., 2025) and both use one learning rate. As torch.optim.Muon with
    ``adjust_lr_fn="match_rms_adamw"``. If one tensor has several experts, each expert is a matrix.

    Vectors, the embedding and the head (which are not in a block) take AdamW's step. The last bits of matrix products
    differ between devices, so this is only for local steps (mode delta), where members need not agree on them.
    """

    def step(self, section: Section, count: int, rate: float) -> None:
        move = self._mover(section, rate, count, count)
        for here in section.stretches(count, whole=True):
            if not hidden_matrix(here):
                move(here)
                continue
            m, grad = here.moments["m"], here.grad
            m.mul_(MOMENTUM).add_(grad * (1 - MOMENTUM))
            update = grad * (1 - MOMENTUM) + m * MOMENTUM
            if self.weight_decay:
                here.x.sub_(here.x * (rate * self.weight_decay))
            rows, columns = here.shape[-2:]
            turned = orthogonal(update.view(-1, rows, columns)).reshape(-1).to(here.x.dtype)
            here.x.sub_(turned.mul_(rate * 0.2 * math.sqrt(max(rows, columns))))


def hidden_matrix(here: Stretch) -> bool:
    """Whether a parameter is a matrix, or several of one shape, inside a block."""
    return len(here.shape) in (2, 3) and _IN_BLOCK.search(here.name) is not None


def orthogonal(matrices: Tensor) -> Tensor:
    """Approximately U V^T for each matrix U S V^T, [n, rows, columns], by the Newton-Schulz iteration in bf16. On a CPU
    it is in fp32: one without instructions for bf16 takes 10 to 50 times as long with it."""
    a, b, c = COEFFICIENTS
    values = matrices.float() if matrices.device.type == "cpu" else matrices.bfloat16()
    wide = values.shape[-2] <= values.shape[-1]
    values = values if wide else values.mT
    values = values / values.flatten(1).norm(dim=1).clamp(min=_EPS)[:, None, None]
    for _ in range(STEPS):
        gram = values @ values.mT
        values = torch.baddbmm(values, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), values, beta=a)
    return values if wide else values.mT
