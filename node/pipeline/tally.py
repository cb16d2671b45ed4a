"""The sums of a step or an evaluation on a node, read from its device once, at the end."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Tally:
    """Sums over the microbatches.

    The last stage's losses stay on the device until ``settle``: reading each at once would make the host wait for the
    device in every microbatch.
    """

    loss_sum: float = 0.0
    tokens: int = 0
    samples: int = 0
    correct: int = 0
    activation_elements: int = 0
    """Elements sent to neighbours (activations and gradients)."""
    loss_scale: float = 1.0
    """fp16: the factor on the loss in the step's gradients."""
    _losses: list[Tensor] = field(default_factory=list)
    _correct: list[Tensor] = field(default_factory=list)

    def add(self, loss: Tensor, correct: Tensor) -> None:
        """Add a microbatch's loss sum, a scalar, and its number of correctly predicted targets, an int64 scalar."""
        self._losses.append(loss.detach())
        self._correct.append(correct)

    def settle(self) -> None:
        """Move the added values into the sums; waits for the device."""
        if self._losses:
            self.loss_sum += sum(torch.stack(self._losses).tolist())
            self.correct += sum(torch.stack(self._correct).tolist())
            self._losses, self._correct = [], []
