"""What a start says of the data and the model, kept for those who look later: `farflung status` shows it as well."""

from __future__ import annotations

import json
import time
from typing import Any

from ..events import Emit
from ..store.store import Store

_KEY = "remarks"
_MOST = 20


class Remarks:
    """Passes events on. Its warnings are stored with the run's; its notices take the place of those of the start before
    when they are kept."""

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
            self._store.add_warning(time.time(), str(event.get("node") or ""), message)

    def keep(self) -> None:
        """The start has read everything. One that found what the start before had read keeps what that one said."""
        if self._notices:
            self._store.put(_KEY, json.dumps(self._notices[-_MOST:]))


def remarks(store: Store) -> list[str]:
    """What the last start that read the data said of them, a sentence each."""
    found: list[str] = json.loads(store.get(_KEY) or "[]")
    return found
