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
"""With overlap, a round may take this part of the time that hides it: links vary."""


@dataclass(frozen=True)
class Room:
    """Compute beside which rounds go. mode: of the updates. every: steps between the beginnings of two rounds. compute:
    seconds of a step. busy: of each group, the seconds of a step for which its lines carry activations, and no compute
    hides its round; empty: none."""

    mode: str
    every: int
    compute: float
    busy: tuple[float, ...] = ()

    def hidden(self, overlap: int, group: int = 0) -> float:
        """Seconds of the steps of a round's overlap that hide it."""
        return overlap * max(0.0, self.compute - (self.busy[group] if self.busy else 0.0))

    def fits(self, waits: float, overlap: int, group: int = 0, full: float = FULL) -> bool:
        """Whether a group's round that takes so many seconds (in gradient mode: that a step waits for so long) is
        hidden."""
        if not overlap:
            return waits <= HIDDEN * self.every * self.compute
        return waits <= full * self.hidden(overlap, group)

    def rungs(self, waits: Matrix, overlap: int) -> list[int]:
        """For each group, the index in the ladder of the first codec whose round fits; where none does, of the first
        that is hardly slower than the fastest: what is left may be latency, which no codec shortens. waits: seconds as
        in ``fits``, float64 [codecs, groups]."""
        hardly, chosen = HIDDEN * self.every * self.compute, []
        for group, column in enumerate(waits.T):
            fits = (at for at, took in enumerate(column) if self.fits(float(took), overlap, group))
            nearly = next(at for at, took in enumerate(column) if took <= column.min() + hardly)
            chosen.append(next(fits, nearly))
        return chosen

    def overlap(self, waits: Matrix) -> int:
        """The shortest overlap at which every group gets the least lossy codec that a quarter of the interval hides.
        waits: as in ``rungs``."""
        if self.mode == "gradient":
            return 0
        for most in (math.ceil(self.every / 4), self.every):
            best = [float(waits[at, group]) for group, at in enumerate(self.rungs(waits, most))]
            if max(best) <= HIDDEN * self.compute:
                return 0
            for steps in range(1, most + 1):
                if all(self.fits(took, steps, group) for group, took in enumerate(best)):
                    return steps
        return self.every
