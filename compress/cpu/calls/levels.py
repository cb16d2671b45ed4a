"""Tables of levels in the form that the compiled loops search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

STEPS = 8


@dataclass(frozen=True)
class Mirror:
    """A symmetric table with at most 8 steps between levels on each side, for ``loops.levels.mirrored``. Without edges:
    the table has more steps, or is not symmetric."""

    least: np.generic
    edges: np.ndarray
    highs: np.ndarray
    centre: int

    def numbers(self) -> tuple[np.generic, np.ndarray, np.ndarray, int]:
        return self.least, self.edges, self.highs, self.centre

    @classmethod
    def of(cls, levels: np.ndarray, middle: int | None) -> Mirror:
        """levels: rising; fp32 and symmetric about 0, or int32 and symmetric about grid / 2. middle: the code of the
        lower end of the first step; None: the levels are not symmetric."""
        kind = levels.dtype.type
        beyond = np.inf if levels.dtype.kind == "f" else np.iinfo(np.int32).max
        if middle is None or len(levels) - 1 - middle > STEPS:
            return cls(kind(0), np.empty(0, kind), np.empty(0, kind), 0)
        highs, edges = np.full(STEPS, levels[-1], kind), np.full(STEPS - 1, beyond, kind)
        upper = levels[middle + 1 :]
        highs[: len(upper)] = upper
        edges[: len(upper) - 1] = upper[:-1]
        return cls(levels[middle], edges, highs, middle)

    @classmethod
    def about(cls, levels: np.ndarray, total: float) -> Mirror:
        """The mirror of levels that may be symmetric about total / 2; without edges if they are not."""
        symmetric = len(levels) % 2 == 0 and bool((levels == total - levels[::-1]).all())
        return cls.of(levels, len(levels) // 2 - 1 if symmetric else None)
