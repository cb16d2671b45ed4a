"""Progress of long work as events: none in the first two seconds, then one a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

FIRST_S, EVERY_S = 2.0, 1.0
Tell = Callable[[dict[str, Any]], None]
"""Shows ``progress`` events: ``what``, how much of it is ``done``, ``of`` how much, in ``unit`` (tokens, bytes)."""


def silent(event: dict[str, Any]) -> None:
    """Drops the event."""


@dataclass
class Meter:
    """Counts one piece of work. Used by one thread, which calls ``tell``. ``of``: the total; 0: not known."""

    what: str
    unit: str
    tell: Tell
    clock: Callable[[], float] = time.monotonic
    done: int = 0
    of: int = 0
    _next: float = field(init=False)

    def __post_init__(self) -> None:
        self._next = self.clock() + FIRST_S

    def add(self, count: int) -> None:
        """``count`` more units are done."""
        self.done += count
        if self.clock() >= self._next:
            self._next = self.clock() + EVERY_S
            event = {"event": "progress", "time": time.time(), "what": self.what, "done": self.done, "unit": self.unit}
            self.tell({**event, "of": self.of} if self.of else event)
