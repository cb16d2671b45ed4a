"""Where the time of a step goes on this node, by the trainer's own clock.

On a GPU these are the times of the calling thread: queued work counts where the thread waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from ...proto.messages.trace import Span

ROW = "1 training"


@dataclass
class StepClock:
    """Seconds since ``reset``: in the model and the optimiser, in codecs, and idle.

    ``wire``: idle while something that was sent is not acknowledged yet, or a message is arriving. ``waiting``: idle
    otherwise, so for the computing of others. ``spans``: what happened when, only while somebody wants to know.
    """

    compute: float = 0.0
    codec: float = 0.0
    wire: float = 0.0
    waiting: float = 0.0
    spans: list[Span] | None = None
    worked: Callable[[], None] = lambda: None
    """Called when a piece of work is done."""

    def reset(self) -> None:
        """A step begins."""
        self.compute = self.codec = self.wire = self.waiting = 0.0

    @contextmanager
    def computing(self, what: str, detail: object = "") -> Iterator[None]:
        """The time inside is the model's or the optimiser's."""
        started = time.monotonic()
        yield
        seconds = time.monotonic() - started
        self.worked()
        self.compute += seconds
        if self.spans is not None:
            self.spans.append(Span(ROW, what, started, seconds, str(detail)))

    @contextmanager
    def coding(self, what: str, detail: object = "") -> Iterator[None]:
        """The time inside is a codec's."""
        started = time.monotonic()
        yield
        seconds = time.monotonic() - started
        self.codec += seconds
        if self.spans is not None:
            self.spans.append(Span(ROW, what, started, seconds, str(detail)))

    def idle(self, seconds: float, under_way: bool) -> None:
        """The trainer had nothing to do for ``seconds``."""
        if under_way:
            self.wire += seconds
        else:
            self.waiting += seconds

    def span(self, what: str, detail: object = "") -> AbstractContextManager[None]:
        """What is inside has a place in a trace, if there is one; no part of the step's time is counted."""
        return nullcontext() if self.spans is None else self._recorded(self.spans, what, detail)

    @contextmanager
    def _recorded(self, spans: list[Span], what: str, detail: object) -> Iterator[None]:
        started = time.monotonic()
        yield
        spans.append(Span(ROW, what, started, time.monotonic() - started, str(detail)))
