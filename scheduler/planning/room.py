"""How much of the compute a round may fill, and so which codec and overlap it gets: for plans and for advice.

A round that is one step late costs less loss than a stronger codec, but lateness makes a codec's errors worse (Chen et
al. 2025, DeCo-SGD). So codecs are tried from the least lossy on, each with the shortest overlap that hides its round,
up to a quarter of the steps between two rounds. Only where no codec fits into that quarter may the overlap be longer.

In gradient mode there is no overlap: a round counts with what the step waits for it after its last backward pass, which
hides the rest (timing/early.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..networks.devices import Matrix

HIDDEN = 0.02
"""Without overlap, a round may take this part of the compute between two rounds."""
FULL = 0.8
"""With overlap, a round may take this part of the compute that hides it: links vary, and also carry activations."""


@dataclass(frozen=True)
class Room:
    """Compute beside which rounds go. mode: of the updates. every: steps between the beginnings of two rounds. compute:
    seconds of a step."""

    mode: str
    every: int
    compute: float

    def fits(self, waits: float, overlap: int, full: float = FULL) -> bool:
        """Whether a round that takes so many seconds (in gradient mode: that a step waits for so long) is hidden."""
        if not overlap:
            return waits <= HIDDEN * self.every * self.compute
        return waits <= full * overlap * self.compute

    def rungs(self, waits: Matrix, overlap: int) -> list[int]:
        """For each group, the index in the ladder of the first codec whose round fits; where none does, of the first
        that is hardly slower than the fastest: what is left may be latency, which no codec shortens. waits: seconds as
        in ``fits``, float64 [codecs, groups]."""
        hardly, chosen = HIDDEN * self.every * self.compute, []
        for column in waits.T:
            fits = (at for at, took in enumerate(column) if self.fits(float(took), overlap))
            nearly = next(at for at, took in enumerate(column) if took <= column.min() + hardly)
            chosen.append(next(fits, nearly))
        return chosen

    def overlap(self, waits: Matrix) -> int:
        """The shortest overlap at which every group gets the least lossy codec that a quarter of the interval hides.
        waits: as in ``rungs``."""
        if self.mode == "gradient":
            return 0
        for most in (math.ceil(self.every / 4), self.every):
            best = self.rungs(waits, most)
            slowest = max(float(waits[at, place]) for place, at in enumerate(best))
            if slowest <= HIDDEN * self.compute:
                return 0
            if self.fits(slowest, most):
                return next(steps for steps in range(1, most + 1) if self.fits(slowest, steps))
        return self.every
