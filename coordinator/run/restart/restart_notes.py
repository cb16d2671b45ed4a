"""Data about nodes that a restart needs and that is in no other table: stored whenever it changes."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...membership.resuming.learnt import Kept, to_json
from ..context import RunContext
from ..deciding import Deciding
from .stand import reported_text

REPORTED_S = 1.0
"""Seconds between two notes of the pipelines' progress."""


class RestartNotes:
    """Writes each note only where it differs from the last one."""

    def __init__(self, context: RunContext, deciding: Deciding) -> None:
        self._context, self._deciding = context, deciding
        self._kept: Kept | None = None
        self._reported: Mapping[str, int] | None = None
        self._reported_at = -math.inf

    def put_kept(self) -> None:
        """Store which residuals nodes keep on their own disks, for a start after all processes have ended."""
        kept = self._deciding.state.kept
        if kept is not self._kept:
            self._kept = kept
            self._context.store.put("kept", to_json(kept))

    def put_reported(self) -> None:
        """Store each pipeline's reported step, about once a second: its samples must not be trained again if the
        pipeline and this coordinator end at the same time."""
        state, now = self._deciding.state, self._context.clock()
        if self._context.job.updates.mode != "delta" or state.view is None or now - self._reported_at < REPORTED_S:
            return
        if state.reported is not self._reported:
            self._reported, self._reported_at = state.reported, now
            self._context.store.put("reported", reported_text(state.view, state.reported))
