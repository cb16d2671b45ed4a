"""Work beside the run that may fail without consequences for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ..store.database import LeaseLost

log = logging.getLogger(__name__)


def attempt(what: str, do: Callable[..., object], *arguments: Any) -> None:
    """Call ``do``; what it raises is logged. LeaseLost is raised on: this coordinator does not lead any more."""
    try:
        do(*arguments)
    except LeaseLost:
        raise
    except Exception:
        log.exception("%s failed", what)
