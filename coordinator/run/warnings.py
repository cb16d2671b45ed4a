"""Warnings for people: stored and shown as events, in a number that a person can read."""

from __future__ import annotations

import time
from collections.abc import Callable

from .. import events
from .context import RunContext

Warn = Callable[[str, str], None]
"""``warn(node, message)``; ``node`` is empty where a warning is about no node."""

SAME_S = 10.0
"""Seconds before the same warning may be shown again."""
MOST = 20
"""Most warnings about one node within that time."""


class Warnings:
    """Drops a warning that was shown a moment ago, and warnings beyond the limit for a node."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._said: dict[tuple[str, str], float] = {}
        """(node, message) -> when."""

    def warn(self, node: str, message: str) -> None:
        """Store and show a warning, unless it is over the limit."""
        context, now, key = self._context, self._context.clock(), (node, message)
        self._said = {one: when for one, when in self._said.items() if now - when < SAME_S}
        if key in self._said or (node and sum(one == node for one, _ in self._said) >= MOST):
            return
        self._said[key] = now
        context.store.warnings.add(time.time(), node, message)
        context.emit(events.event("warning", message=message, node=node))
