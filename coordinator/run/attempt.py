"""Runs optional work whose failure must not harm the run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ..store.engines.database import LeaseLost

log = logging.getLogger(__name__)


def attempt(what: str, do: Callable[..., object], *arguments: Any) -> None:
    """Call ``do`` and log what it raises. LeaseLost propagates: this coordinator no longer leads."""
    try:
        do(*arguments)
    except LeaseLost:
        raise
    except Exception:
        log.exception("%s failed", what)
