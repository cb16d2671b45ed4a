"""How the time of a step divides into computing, coding and waiting, measured in the trainer's thread.

On a GPU this is the time of the calling thread: queued work counts at the point where the thread waits for it.
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

    ``wire``: idle while a message of this node is not acknowledged yet, or one is arriving. ``waiting``: idle
    otherwise, that is, while other nodes compute. ``spans``: what happened when; None unless a trace is recorded.
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
        """Count the time of the ``with`` block as the model's or the optimiser's, but what codecs take in it."""
        started, before = time.monotonic(), self.codec
        yield
        seconds = time.monotonic() - started
        self.worked()
        self.compute += seconds - (self.codec - before)
        if self.spans is not None:
            self.spans.append(Span(ROW, what, started, seconds, str(detail)))

    @contextmanager
    def coding(self, what: str, detail: object = "") -> Iterator[None]:
        """Count the time of the ``with`` block as a codec's."""
        started = time.monotonic()
        yield
        seconds = time.monotonic() - started
        self.codec += seconds
        if self.spans is not None:
            self.spans.append(Span(ROW, what, started, seconds, str(detail)))

    def idle(self, seconds: float, under_way: bool) -> None:
        """Count ``seconds`` in which the trainer had nothing to do. ``under_way``: see ``wire`` above."""
        if under_way:
            self.wire += seconds
        else:
            self.waiting += seconds

    def span(self, what: str, detail: object = "") -> AbstractContextManager[None]:
        """Record the ``with`` block as a span of the trace, if one is recorded; it adds to none of the four sums."""
        return nullcontext() if self.spans is None else self._recorded(self.spans, what, detail)

    @contextmanager
    def _recorded(self, spans: list[Span], what: str, detail: object) -> Iterator[None]:
        started = time.monotonic()
        yield
        spans.append(Span(ROW, what, started, time.monotonic() - started, str(detail)))
