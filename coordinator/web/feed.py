"""The page's state, computed once for all viewers, at most as often as the event loop has time for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..observe.history import History
from ..store.rows import ViewRow
from .picture import TIMELINE, picture, timeline_of

PERIOD_S = 1.0
_PART = 0.05
"""The page takes at most this part of the event loop's time."""


class Source(Protocol):
    """The data that the page shows; implemented by run_page.RunSource, and by fakes in tests."""

    @property
    def history(self) -> History:
        """The curves."""

    def record(self) -> dict[str, Any]:
        """The status record."""

    def views(self) -> Sequence[ViewRow]:
        """All views, oldest first."""

    def commands(self) -> Sequence[str]:
        """The commands that the operator may give now."""


class Feed:
    """``state()`` is the newest state as JSON, at most ``PERIOD_S`` old, or older where making it is slow."""

    def __init__(self, source: Source, clock: Callable[[], float] = time.monotonic) -> None:
        self._source, self._clock = source, clock
        self._record: dict[str, Any] = {}
        self._state, self._made, self._cost = "", float("-inf"), 0.0
        self._timeline: list[dict[str, Any]] = []
        self._view = -1

    @property
    def pause(self) -> float:
        """Least seconds between two computations of the state: PERIOD_S, or more where computing it takes long."""
        return max(PERIOD_S, self._cost / _PART)

    @property
    def record(self) -> dict[str, Any]:
        """The status record that the state was made of."""
        self.state()
        return self._record

    def state(self) -> str:
        """The state as JSON."""
        started = self._clock()
        if started - self._made >= self.pause:
            self._record = self._source.record()
            number = (self._record.get("view") or {}).get("view", 0)
            if number != self._view:
                rows = list(self._source.views())[-TIMELINE:]
                self._timeline, self._view = timeline_of(rows, [json.loads(row.plan) for row in rows]), number
            self._state = json.dumps(picture(self._record, self._timeline, self._source.commands()))
            self._made = self._clock()
            self._cost = self._made - started
        return self._state

    def curves(self, edition: int, points: int, evals: int) -> dict[str, Any]:
        """The rows that a client is missing, given how many points and evaluations of an edition it has."""
        return self._source.history.since(edition, points, evals)
