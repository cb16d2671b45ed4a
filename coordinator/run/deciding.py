"""The membership machine's state, and the order in which events come to it.

Events are decided one after another. While a plan is being made, later events wait, and are then decided in order. The
heartbeats of many nodes become one event. Effects are not performed here but passed to ``moved``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path

from ..membership import signals as s
from ..membership.machine import Membership
from ..membership.questions import Answer, Question
from ..membership.state import Known, Patience, State
from ..replay.recorder import Recorder
from ..store.engines.database import LeaseLost

log = logging.getLogger(__name__)

AT_ONCE = 64
"""With at most this many nodes each step report is decided at once; with more, all of a tick together."""

Moved = Callable[[State, list[s.Effect], str], None]
"""The state before a transition, the effects, and why."""


class Deciding:
    """``leads()``: whether this coordinator may decide anything; ``answer(question)``: searches for a plan."""

    def __init__(
        self,
        state: State,
        *,
        follow: bool,
        known: Known,
        fetch_s: Patience,
        clock: Callable[[], float],
        leads: Callable[[], bool],
        answer: Callable[[Question], Awaitable[Answer]],
        moved: Moved,
    ) -> None:
        self.state = state
        self._follow, self._known, self._fetch_s, self._clock = follow, known, fetch_s, clock
        self._leads, self._answer, self._moved = leads, answer, moved
        self.machine = Membership(None, fetch_s, follow, known)
        self._recorder: Recorder | None = None
        self._later: deque[s.Input] = deque()
        """Events that came while a plan was being searched for."""
        self._beats: dict[str, s.Heard] = {}
        """Heartbeats since the last tick."""
        self._stepped: list[tuple[s.StepFinished, float]] = []
        """Reports of steps since the last event, of a run of many nodes."""

    def record(self, folder: Path, life: int) -> None:
        """Record the machine's events and effects in this folder from now on. ``life``: the coordinator's term."""
        self._recorder = Recorder(folder, life, self._follow)
        readings = self._recorder.readings
        self.machine = Membership(None, readings.fetch_s(self._fetch_s), self._follow, readings.known(self._known))

    def write(self) -> None:
        """Write the newest events of the recording to the disk, if that is due."""
        if self._recorder is not None:
            self._recorder.write()

    def close(self) -> None:
        """Write the whole recording to the disk."""
        if self._recorder is not None:
            self._recorder.close()

    # ---- what happens --------------------------------------------------------------------------

    def feed(self, event: s.Input) -> None:
        """Decide an event, or queue it; does nothing once another coordinator may lead."""
        if not self._leads():
            return
        if not self.is_planning:
            if self._stepped:
                self._apply(self._steps())
            self._apply(event)
        elif not isinstance(event, (s.Tick, s.Replan)):  # these come again anyway
            if self._stepped:
                self._later.append(self._steps())
            self._later.append(event)

    def stepped(self, event: s.StepFinished) -> None:
        """A node has finished a step."""
        if len(self.state.nodes) > AT_ONCE:
            self._stepped.append((event, self._clock()))
        else:
            self.feed(event)

    def heard(self, name: str, session: str, ready: bool, moved: int, idle_s: float) -> None:
        """A heartbeat. A node that was ready since the last tick stays so."""
        known = self._beats.get(name)
        was_ready = known is not None and known.session == session and known.ready
        self._beats[name] = s.Heard(name, session, was_ready or ready, moved, idle_s)

    def take_beats(self) -> None:
        """Decide the heartbeats since the last tick as one event: a thousand nodes send a thousand a second."""
        if self._beats and not self.is_planning:
            beats, self._beats = tuple(self._beats.values()), {}
            self.feed(s.Beats(beats))

    def end(self, why: str) -> None:
        """The run, or this coordinator's part in it, is over: drop the events that wait for a plan."""
        if self.state.asking is not None:
            self._later.clear()
            self._transit(s.Undecidable(self.state.asking.number))
        self._transit(s.Over(why))

    # ---- plans ---------------------------------------------------------------------------------

    @property
    def is_planning(self) -> bool:
        """Whether an event, and those that came after it, wait for a plan."""
        return self.state.asking is not None

    @property
    def joining(self) -> list[str]:
        """The nodes that have joined and whose event waits for a plan."""
        return [one.name for one in self._later if isinstance(one, s.Joined)]

    def would_ask(self) -> Question | None:
        """The question that the machine would ask if it planned now; None: no question, or it waits for a plan."""
        if self.is_planning:
            return None
        machine = Membership(None, self._fetch_s, self._follow, self._known)  # without recording
        _, effects, _ = machine.apply(self.state, s.Replan(""), self._clock())
        return next((effect.question for effect in effects if isinstance(effect, s.Ask)), None)

    async def ask(self, effect: s.Ask) -> None:
        """Have a plan made and then decide the waiting events. Nothing is decided before, so every error has to become
        an answer."""
        try:
            answer = await self._answer(effect.question)
        except Exception as error:
            log.exception("a plan could not be asked for")
            answer = Answer(None, f"the search for a plan failed: {error!r}")
        self.planned(effect, answer)

    def planned(self, effect: s.Ask, answer: Answer) -> None:
        """Decide the event that needs this plan, and those that came meanwhile."""
        waiting: list[s.Input] = [s.Planned(effect.number, answer)]
        while waiting and self._leads():
            try:
                self._apply(waiting.pop())
            except LeaseLost:
                raise
            except Exception:  # the node that reported it does not wait for the result any more
                log.exception("what needed a plan, or came while it was worked out, could not be taken")
                if (asking := self.state.asking) is not None and asking.number == effect.number:
                    self._apply(s.Undecidable(effect.number))
            if self._later and not self.is_planning:
                waiting.append(self._later.popleft())

    # ---- one transition --------------------------------------------------------------------------

    def _steps(self) -> s.Steps:
        steps, self._stepped = tuple(self._stepped), []
        return s.Steps(steps)

    def _apply(self, event: s.Input) -> None:
        before = self.state
        self._moved(before, *self._transit(event))

    def _transit(self, event: s.Input) -> tuple[list[s.Effect], str]:
        """Make one transition of the machine. Returns (effects, why)."""
        before, now, recorder = self.state, self._clock(), self._recorder
        if recorder is None:
            self.state, effects, why = self.machine.apply(before, event, now)
            return effects, why
        recorder.readings.taken.clear()
        try:
            self.state, effects, why = self.machine.apply(before, event, now)
        except Exception as error:
            recorder.broke(before, event, now, error)
            raise
        recorder.note(before, event, now, self.state, effects, why)
        return effects, why
