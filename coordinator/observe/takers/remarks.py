"""Notices about data and model from the start of a run, stored so that `farflung status` shows them later."""

from __future__ import annotations

import json
import time
from typing import Any

from ...events import Emit
from ...store.store import Store

_KEY = "remarks"
_MOST = 20


class Remarks:
    """Passes the start's events on and stores its warnings; ``keep`` replaces the last start's notices by its own."""

    def __init__(self, store: Store, emit: Emit) -> None:
        self._store, self._emit = store, emit
        self._notices: list[str] = []

    def hear(self, event: dict[str, Any]) -> None:
        """An event of the start."""
        self._emit(event)
        message = str(event.get("message"))
        if event.get("event") == "notice":
            self._notices.append(message)
        elif event.get("event") == "warning":
            self._store.warnings.add(time.time(), str(event.get("node") or ""), message)

    def keep(self) -> None:
        """Store the notices. A start that reused an earlier start's data has none and keeps the earlier ones."""
        if self._notices:
            self._store.put(_KEY, json.dumps(self._notices[-_MOST:]))


def remarks(store: Store) -> list[str]:
    """The stored notices of the last start that read the data, a sentence each."""
    found: list[str] = json.loads(store.get(_KEY) or "[]")
    return found
