"""Performs the effects of the membership machine: a table from each kind of effect to its function."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....job.checks.cautions import cautions
from ....proto.errors import FarflungError
from ... import events
from ...membership import signals as s
from ...membership.members import Planner
from ...membership.orders import Send
from ...membership.questions import answered
from ...membership.state import WAITING, State
from ...store.engines.database import LeaseLost
from ..attempt import attempt
from ..context import RunContext
from ..deciding import Deciding
from ..durability.saving import Saving
from ..nodes.announcing import Announcing
from ..nodes.dialling import DialBack
from ..nodes.sessions import Sessions
from ..nodes.streams import Streams
from ..reports.step_reports import StepReports
from ..warnings import Warn
from .outcome import Outcome, done
from .tasks import Tasks
from .undone import MOST as UNDONE
from .undone import Undone

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Performer:
    """Performs effects; those that fail are retried later (undone.py). ``planner``: one that answers at once, else
    None."""

    context: RunContext
    deciding: Deciding
    streams: Streams
    sessions: Sessions
    steps: StepReports
    announcing: Announcing
    saving: Saving
    dial_back: DialBack
    tasks: Tasks
    outcome: Outcome
    warn: Warn
    planner: Planner | None = None
    undone: Undone = field(default_factory=Undone)
    _noticed: str = ""

    def moved(self, old: State, effects: list[s.Effect], why: str) -> None:
        """The machine has made a transition: store it, show it, and perform its effects."""
        state, context = self.deciding.state, self.context
        if (state.phase, state.why) != (old.phase, old.why):
            context.store.put("phase", state.phase)
            context.store.put("why", state.why)
        if state.phase != old.phase:
            context.emit(events.phase(state.phase, state.why))
        if why:
            log.info("%s", why)
            said = any(isinstance(effect, s.Say) for effect in effects)
            if state.phase == WAITING and not said and why != self._noticed:
                self._noticed = why
                context.emit(events.event("notice", message=why, node=""))
        self.perform_all(effects)

    def perform_all(self, effects: Iterable[s.Effect]) -> None:
        """Perform effects in order; one that fails is retried later and does not stop the rest. LeaseLost stops all."""
        for effect in effects:
            try:
                self.perform(effect)
            except LeaseLost:
                raise
            except Exception as error:
                self._failed(effect, error)

    def perform_due(self) -> None:
        """Retry the effects that are due."""
        self.perform_all(self.undone.due(self.deciding.state, self.context.clock()))

    def perform(self, effect: s.Effect) -> None:
        """Perform one effect."""
        PERFORMERS[type(effect)](self, effect)

    def _failed(self, effect: s.Effect, error: Exception) -> None:
        dropped = self.undone.dropped
        self.undone.add(effect, self.context.clock())
        what = type(effect).__name__
        log.error("%s could not be done", what, exc_info=error)
        attempt("a warning", self.warn, "", f"{what} failed ({error}); it is tried again, the run goes on")
        if self.undone.dropped > dropped:
            most = f"more than {UNDONE} effects wait to be done again: the oldest is given up"
            attempt("a warning", self.warn, "", most)

    # ---- one method for each kind of effect ----------------------------------------------------

    def _ask(self, effect: s.Ask) -> None:
        if self.planner is not None:
            self.deciding.planned(effect, answered(self.planner, effect.question))
        else:
            self.tasks.begin(self.deciding.ask(effect))

    def _announce(self, effect: s.SendView) -> None:
        self.announcing.announce(effect)

    def _keep_view(self, effect: s.KeepView) -> None:
        self.announcing.keep(effect.view)

    def _send_measure(self, effect: s.SendMeasure) -> None:
        self.announcing.send(effect, (effect.to,))

    def _send(self, effect: Send) -> None:
        self.announcing.send(effect, effect.to)  # type: ignore[arg-type]  # all but SendMeasure go to several

    def _start(self, effect: s.SendStart) -> None:
        self.announcing.send(effect, effect.to)  # sent first, because the nodes wait for it
        if self.context.store.get("began") is None:
            for caution in cautions(self.context.job, self.context.job.steps(self.context.facts.samples)):
                self.warn("", caution)
            self.context.store.put("began", str(time.time()))

    def _dial(self, effect: s.Dial) -> None:
        self.tasks.begin(self._dialled(effect))

    async def _dialled(self, effect: s.Dial) -> None:
        answer = await self.dial_back.ask(effect)
        self.deciding.take_beats()
        self.deciding.feed(answer)

    def _fall_back(self, effect: s.LookAt | s.PutAside) -> None:
        self.tasks.begin(self._fallen_back(effect))

    async def _fallen_back(self, effect: s.LookAt | s.PutAside) -> None:
        try:
            found = await self.saving.look(effect)
        except FarflungError as error:
            self._failed(effect, error)
            return
        self.saving.fall_back(effect, found)

    def _fence(self, effect: s.Fence) -> None:
        self.announcing.views.left(effect.session)
        self.streams.fence(effect.name, effect.session)
        self.sessions.ended(effect.name, effect.session, effect.why)

    def _say(self, effect: s.Say) -> None:
        if effect.kind == "warning":
            self.warn(effect.node, effect.why)
        elif effect.kind == "waiting":
            self.context.emit(events.event("notice", message=effect.why, node=effect.node))
        else:
            self.context.emit(events.event(effect.kind, node=effect.node, why=effect.why))

    def _finish(self, effect: s.Finish) -> None:
        self.steps.store_work()
        self.outcome.done(done(self.context.store, effect.step, self.steps.bytes))

    def _fail(self, effect: s.Fail) -> None:
        self.outcome.failed(effect.why, effect.hint)


PERFORMERS: Mapping[type, Callable[[Performer, Any], None]] = {
    s.Ask: Performer._ask,
    s.SendView: Performer._announce,
    s.KeepView: Performer._keep_view,
    s.SendMeasure: Performer._send_measure,
    s.SendFlush: Performer._send,
    s.SendStart: Performer._start,
    s.SendStop: Performer._send,
    s.SendNotice: Performer._send,
    s.SendLeave: Performer._send,
    s.Dial: Performer._dial,
    s.LookAt: Performer._fall_back,
    s.PutAside: Performer._fall_back,
    s.Fence: Performer._fence,
    s.Say: Performer._say,
    s.Finish: Performer._finish,
    s.Fail: Performer._fail,
}
