"""How a node's residuals (error feedbacks and server errors) are kept: in fp32, or in bf16 with stochastic rounding
(``updates.residual``).

In bf16 every change of one is made in fp32 and rounded up or down with the probabilities that make the mean right: an
error feedback to which a round adds less than a 256th of itself would not change if it were rounded to nearest (Gupta
et al., 2015). Whether up or down follows from the run's seed, the round, the section and the element's index alone, so
that the bits are the same after a restart, on every device, and however the vector is cut into pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import xxhash
from torch import Tensor

from .moments import STRETCH, column, noise_table, rounded


@dataclass(frozen=True)
class Residuals:
    """``dtype``: fp32 or bf16. ``seed``: the run's."""

    dtype: torch.dtype = torch.float32
    seed: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether what is kept is what was computed."""
        return self.dtype == torch.float32

    def kept(self, values: Tensor, kind: str, place: int, round: int) -> Tensor:
        """What is kept of ``values``, fp32 [n]: themselves, or a new tensor. ``kind``: of which vector, with the
        section's name; ``place``: the index of the first value in it; ``round``: how many were applied before."""
        if self.is_exact or not values.numel():
            return values
        first = place // STRETCH
        rows = range(first, (place + values.numel() - 1) // STRETCH + 1)
        turns = [xxhash.xxh3_64_intdigest(f"{self.seed}/{kind}/{row}/{round}".encode()) & 0xFFFF for row in rows]
        noise = (noise_table(values.device) + column(turns, values.device)).bitwise_and_(0xFFFF).view(-1)
        return rounded(values, noise[place - first * STRETCH :][: values.numel()])


EXACT = Residuals()
