"""What a step or an evaluation adds up on a node, read from its device once, at the end."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Tally:
    """Sums over the microbatches.

    What the last stage computes stays on its device until ``settle``: to read each loss as it is computed would make
    the host wait for the device in every microbatch.
    """

    loss_sum: float = 0.0
    tokens: int = 0
    samples: int = 0
    correct: int = 0
    activation_elements: int = 0
    """Elements sent to neighbours, both ways."""
    _losses: list[Tensor] = field(default_factory=list)
    _correct: list[Tensor] = field(default_factory=list)

    def add(self, loss: Tensor, correct: Tensor) -> None:
        """The loss sum of a microbatch, a scalar, and how many of its targets were named right, an int64 scalar."""
        self._losses.append(loss.detach())
        self._correct.append(correct)

    def settle(self) -> None:
        """Read what was added; waits for the device."""
        if self._losses:
            self.loss_sum += sum(torch.stack(self._losses).tolist())
            self.correct += sum(torch.stack(self._correct).tolist())
            self._losses, self._correct = [], []
