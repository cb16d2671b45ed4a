"""Phase ``preparing``: members report that they are prepared, or that they can't read the view's checkpoint."""

from __future__ import annotations

from dataclasses import replace

from .. import signals as s
from ..given import Given
from ..phases.beginning import begin
from ..phases.flushing import check_flushed, say_again
from ..state import FLUSHING, PREPARING, Result, State
from .departures import check_prepared


def prepared(given: Given, state: State, event: s.Prepared, now: float) -> Result:
    """A node is prepared: it has the view and the state with which it begins."""
    change = state.change
    if state.phase != PREPARING or change is None or event.view != change.number or event.name not in change.awaited:
        return state, say_again(state, event.name, event.view)
    unreadable = {name: one for name, one in state.unreadable.items() if name != event.name}
    change = replace(change, prepared={**change.prepared, event.name: event})
    return check_prepared(given, replace(state, change=change, unreadable=unreadable), now)


def unreadable(given: Given, state: State, event: s.Unreadable, now: float) -> Result:
    """A node cannot use the checkpoint with which the view is to begin."""
    change, view = state.change, state.pinned
    if state.phase != PREPARING or change is None or view is None or event.view != change.number:
        return state, say_again(state, event.name, event.view)
    known = state.unreadable.get(event.name)
    if view.checkpoint <= 0 or event.name not in view.plan.nodes or (known and known.session == event.session):
        return state, []
    why = f"{event.name} cannot read {event.file} of the checkpoint of step {view.checkpoint}: {event.why}"
    effects: list[s.Effect] = [s.Say("warning", event.name, why)]
    if not change.looked_at:
        effects.append(s.LookAt(view.checkpoint, why))
    state = replace(state, unreadable={**state.unreadable, event.name: event})
    state = replace(state, change=replace(change, looked_at=True))
    state, more = check_prepared(given, state, now)
    return state, effects + more


def checkpoint_sound(given: Given, state: State, event: s.CheckpointSound, now: float) -> Result:
    """The checkpoint that a member cannot read is intact at the coordinator."""
    if state.phase != PREPARING or state.change is None or state.pinned is None:
        return state, []
    if state.pinned.checkpoint != event.step:
        return state, []
    return check_prepared(given, replace(state, change=replace(state.change, sound=now)), now)


def checkpoint_lost(given: Given, state: State, event: s.CheckpointLost, now: float) -> Result:
    """A checkpoint was set aside: a view that was to begin with it begins with the one before."""
    if state.newest.step >= event.step:
        state = replace(state, newest=event.position, unsent=event.unsent)
    state = replace(state, aside=None, unreadable={})
    effects: list[s.Effect] = [s.Say("warning", "", event.why)]
    if state.phase == PREPARING and state.pinned is not None and state.pinned.checkpoint == event.step:
        state, more = begin(state, event.why, now)
    elif state.phase == FLUSHING:
        state, more = check_flushed(given, state, now)
    else:
        more = []
    return state, effects + more
