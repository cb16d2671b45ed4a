"""Which elements a step offers: contiguous runs, each offered equally often, as a function of (seed, step) alone.

The share ``random`` is written as a fraction a/b. The vector is cut into runs, and the runs into strata of b. Each step
offers a of a stratum's b runs: a window that moves by a each step, from a start that is drawn for each stratum every b
steps. So every run is offered exactly a times in b steps, no step offers more than its share, and the positions are
sorted without computing a permutation.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np
import torch

from ..cpu import dispatch as fast
from ..primitives import philox
from ..primitives.key import Key

STREAM = 0x52554E53  # "RUNS"


@lru_cache(maxsize=64)
def fraction(share: float) -> tuple[int, int]:
    """share as a/b with b at most 1000: 0.1 -> (1, 10)."""
    ratio = Fraction(share).limit_denominator(1000)
    return ratio.numerator, ratio.denominator


def run_length(count: int, run: int, period: int) -> int:
    """The run length for a vector of ``count`` elements: shorter if there are fewer runs than one stratum needs."""
    while run > 1 and count < run * period:
        run //= 2
    return run


def _words(count: int, key: Key, stream: int, start: int) -> np.ndarray:
    return np.asarray(philox.words(count, key, stream, start))


class Offer:
    """The runs that a step offers. ``runs``: rising int64 indices of runs of ``run`` elements, ``elements`` in all."""

    def __init__(self, count: int, share: float, run: int, key: Key) -> None:
        a, b = fraction(share)
        self.count, self.run = count, run_length(count, run, b)
        total = -(-count // self.run)
        if a == b:
            self.runs = np.arange(total, dtype=np.int64)
        else:
            strata = -(-total // b)
            epoch, phase = divmod(key.step, b)
            draw = fast.words if fast.worth(count) else _words
            start = draw(strata, Key(key.seed, epoch), STREAM, 0) * b >> 32
            window = start[:, None] + ((phase * a + np.arange(a)) % b)[None, :]
            window -= (window >= b) * b
            if a > 1:
                window.sort(1)
            runs = (window + np.arange(strata, dtype=np.int64)[:, None] * b).reshape(-1)
            self.runs = runs[: np.searchsorted(runs, total)] if a == 1 else runs[runs < total]
        self.partial = bool(len(self.runs)) and int(self.runs[-1]) == total - 1 and count % self.run != 0
        """Whether the last offered run is the vector's last, shorter one."""
        self.elements = len(self.runs) * self.run - (self.run - count % self.run if self.partial else 0)

    def gather(self, x: np.ndarray) -> np.ndarray:
        """The offered elements of a flat vector, in order: a copy ``[elements]``."""
        whole = self.count // self.run
        rows = self.runs[:-1] if self.partial else self.runs
        out = np.empty(self.elements, x.dtype)
        head = len(rows) * self.run
        np.take(x[: whole * self.run].reshape(whole, self.run), rows, 0, out[:head].reshape(-1, self.run), mode="clip")
        if self.partial:
            out[head:] = x[whole * self.run :]
        return out

    def select(self, x: torch.Tensor) -> torch.Tensor:
        """As ``gather``, on the vector's own device, so that only the offered elements must be copied from it."""
        whole = self.count // self.run
        rows = torch.from_numpy(self.runs[:-1] if self.partial else self.runs).to(x.device)
        out = x[: whole * self.run].view(whole, self.run).index_select(0, rows).view(-1)
        return torch.cat([out, x[whole * self.run :]]) if self.partial else out

    def positions(self, offered: np.ndarray) -> np.ndarray:
        """Indices among the offered elements -> indices in the vector (both int64)."""
        shift = self.run.bit_length() - 1
        out: np.ndarray = self.runs[offered >> shift]
        out <<= shift
        out |= offered & (self.run - 1)
        return out


@lru_cache(maxsize=64)
def offer(count: int, share: float, run: int, key: Key) -> Offer:
    """As ``Offer``, cached, because all workers of a round share it; the cache has room for a vector's pieces."""
    return Offer(count, share, run, key)
