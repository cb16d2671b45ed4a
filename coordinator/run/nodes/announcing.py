"""Sends the machine's orders to nodes. A view is stored before any node hears of it."""

from __future__ import annotations

import json
import time
from dataclasses import replace

from ... import events
from ...membership import signals as s
from ...membership.orders import Send, order_of
from ...membership.view_orders import ViewOrders
from ...store.rows import ViewRow
from ..context import RunContext
from ..deciding import Deciding
from ..reports.step_reports import StepReports
from ..restart.stand import with_stand
from .sessions import Sessions
from .streams import Streams

_VIEWS_KEPT = 8


class Announcing:
    """``recent``: the views announced lately, oldest first: a node may still send files of one that is over."""

    def __init__(
        self, context: RunContext, deciding: Deciding, streams: Streams, sessions: Sessions, steps: StepReports
    ) -> None:
        self._context, self._deciding, self._steps = context, deciding, steps
        self._streams, self._sessions = streams, sessions
        self.views = ViewOrders()
        view = deciding.state.view
        self.recent = [view] if view is not None else []
        self._began: dict[int, float] = {}
        """Number of a view -> when it was announced, by the run's clock."""
        self._held: s.SendView | None = None
        """A view that waits until the database can be written."""

    def age(self, view: s.Announcement) -> float | None:
        """Seconds since a view was announced; None: by an earlier coordinator."""
        began = self._began.get(view.number)
        return None if began is None else self._context.clock() - began

    def send(self, effect: Send, to: tuple[str, ...]) -> None:
        """Send an order of the machine to those of the named nodes whose stream is open."""
        order = order_of(effect, self._context.term)
        if isinstance(effect, s.SendView):
            order.view.evaluate = self._steps.lacks_evaluation
        for name in to:
            stream = self._streams.get(name)
            if stream is not None:
                has_view = order.HasField("view")
                self._streams.say(self.views.order(stream.session, order) if has_view else order, stream)

    def announce(self, effect: s.SendView) -> None:
        """Store a view, then send it to its members. A view that is sent again is stored already."""
        if self._held is not None and self._held.view.number == effect.view.number:
            self._held = replace(self._held, to=self._held.to + effect.to)
            return
        known = self._context.store.views.last()
        if known is None or known.number < effect.view.number:
            self._begin(effect.view)
        if self._context.store.is_behind:
            self._held = effect
        else:
            self.send(effect, effect.to)

    def keep(self, view: s.Announcement) -> None:
        """Store the view that trains once more, with what was added to its plan and its ``why``."""
        known = self._context.store.views.last()
        if known is not None and known.number == view.number:
            self._context.store.views.put(replace(_row_of(view), time=known.time))

    def release(self) -> None:
        """The database can be written again: send the view that waited for it."""
        if self._held is not None:
            held, self._held = self._held, None
            self.send(held, held.to)

    def _begin(self, view: s.Announcement) -> None:
        context = self._context
        self._steps.enter(view)
        context.store.put("stand", with_stand(context.store.get("stand") or "", view))
        context.store.views.put(_row_of(view))
        self.recent = [*self.recent[1 - _VIEWS_KEPT :], view]
        kept = {one.number: self._began[one.number] for one in self.recent if one.number in self._began}
        self._began = {**kept, view.number: context.clock()}
        self._sessions.note_absent(self._deciding.state.nodes)
        self._steps.history.back_to(view.position.step)
        context.checkpoints.discard_after(view.position.step, view.number)
        context.emit(events.view(view, context.job))


def _row_of(view: s.Announcement) -> ViewRow:
    """A view as a row of the database."""
    position = view.position
    return ViewRow(
        view.number,
        view.plan.to_json(),
        json.dumps([[one.name, one.session, one.address, one.dials_out] for one in view.members]),
        position.step,
        position.cursor,
        json.dumps(list(position.redo)),
        checkpoint=view.checkpoint,
        why=view.why,
        time=time.time(),
    )
