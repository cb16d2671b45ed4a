"""Keeps the database up to date, and tells nodes which of their reports are stored."""

from __future__ import annotations

import math

from ...proto import control_pb2 as pb
from .. import events
from .attempt import attempt
from .context import RunContext
from .nodes.announcing import Announcing
from .nodes.streams import Streams
from .reports.step_reports import StepReports
from .restart.restart_notes import RestartNotes
from .warnings import Warn

WORK_S = 10.0
"""Seconds between two stores of the ledger of useful work."""
_ACKNOWLEDGE_S = 1.0


class Storing:
    """``tick`` stores what is due. A failure is logged, and the work is due again at the next tick."""

    def __init__(
        self,
        context: RunContext,
        streams: Streams,
        steps: StepReports,
        announcing: Announcing,
        notes: RestartNotes,
        warn: Warn,
    ) -> None:
        self._context, self._streams, self._warn = context, streams, warn
        self._steps, self._announcing, self._notes = steps, announcing, notes
        self._acknowledged, self._acknowledged_at = steps.ledger, -math.inf
        self._worked_at = context.clock()
        self._behind = self._gave_up = False

    def tick(self) -> None:
        """Store what is due."""
        attempt("catching up", self._catch_up)
        attempt("acknowledging reports", self._acknowledge)
        attempt("remembering what nodes keep", self._notes.put_kept)
        attempt("remembering what was reported", self._notes.put_reported)
        if self._context.clock() - self._worked_at >= WORK_S:
            self._worked_at = self._context.clock()
            attempt("storing the ledger of useful work", self._steps.store_work)

    def _catch_up(self) -> None:
        """Store what had to wait for room on the disk; no node gets a view before it is stored."""
        store = self._context.store
        why = store.catch_up()
        if why and not self._behind:
            self._warn("", f"{why}; training goes on, view changes wait until it can be written")
        elif why and store.given_up and not self._gave_up:
            self._gave_up = True
            self._warn("", f"{why}; there is no more room for what waits: the oldest steps and warnings are given up")
        elif self._behind and not why:
            message = f"{store.name} takes what had to wait"
            self._context.emit(events.event("notice", message=message, node=""))
        self._behind = bool(why)
        if not why:
            self._announcing.release()

    def _acknowledge(self) -> None:
        """Tell the nodes which of their reports are stored; they repeat the others to the next coordinator."""
        ledger, now = self._steps.stored_ledger, self._context.clock()
        if ledger is not None and ledger != self._acknowledged and now - self._acknowledged_at >= _ACKNOWLEDGE_S:
            self._acknowledged, self._acknowledged_at = ledger, now
            self._streams.say(pb.Order(ledger=ledger))
