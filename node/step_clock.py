"""Where the time of a step goes on this node, by the trainer's own clock.

On a GPU the times are those of the calling thread: work that was only queued counts where it is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class StepClock:
    """Seconds since ``reset``: in the model and the optimiser, in codecs, and idle.

    ``wire``: idle while something that was sent is not acknowledged yet, or a message is arriving. ``waiting``: idle
    otherwise, so for the computing of others.
    """

    compute: float = 0.0
    codec: float = 0.0
    wire: float = 0.0
    waiting: float = 0.0

    def reset(self) -> None:
        """A step begins."""
        self.compute = self.codec = self.wire = self.waiting = 0.0

    @contextmanager
    def computing(self) -> Iterator[None]:
        """The time inside is the model's or the optimiser's."""
        started = time.perf_counter()
        yield
        self.compute += time.perf_counter() - started

    @contextmanager
    def coding(self) -> Iterator[None]:
        """The time inside is a codec's."""
        started = time.perf_counter()
        yield
        self.codec += time.perf_counter() - started

    def idle(self, seconds: float, under_way: bool) -> None:
        """Nothing was to be done for so long."""
        if under_way:
            self.wire += seconds
        else:
            self.waiting += seconds
