"""What is common to all transitions of the membership machine: their numbers, the causes of effects, impossible states.

An impossible event or state is an error in farflung: ``Impossible`` is raised with the last transitions, and nothing
changes.
"""

from __future__ import annotations

from dataclasses import replace

from . import signals as s
from .state import FLUSHING, PREPARING, TRAINING, State

KEPT = 8
"""Transitions that are remembered."""
_LONGEST = 160


class Impossible(Exception):
    """An event that cannot happen to this state, or a state that no event can lead to."""


def named(number: int, event: object) -> str:
    """ "17: Left of node-3": an event, as effects, logs and replays name it. ``number``: of this coordinator's life."""
    kind, name = type(event).__name__, getattr(event, "name", "")
    return f"{number}: {kind} of {name}" if name else f"{number}: {kind}"


def counted(state: State) -> State:
    """The state with the number of the next event."""
    return replace(state, events=state.events + 1)


def noted(before: State, after: State, cause: str) -> State:
    """``after`` with the transition from ``before`` in its list of the last ones, if anything changed. Impossible:
    ``after`` is an impossible state."""
    if wrong := impossible(after):
        raise told(before, cause, wrong)
    if (before.phase, before.number, before.why) == (after.phase, after.number, after.why):
        return after
    line = f"{cause}: {before.phase} -> {after.phase}, view {after.number}: {after.why[:_LONGEST]}"
    return replace(after, recent=(*after.recent[1 - KEPT :], line))


def caused(effects: list[s.Effect], cause: str) -> list[s.Effect]:
    """The effects, each with the name of the event that caused it."""
    return [replace(effect, cause=cause) for effect in effects]


def impossible(state: State) -> str:
    """Why a state is impossible; empty where it is possible."""
    changing = state.phase in (FLUSHING, PREPARING)
    if changing and (state.change is None or state.change.number != state.number):
        return f"it is {state.phase} without a change to view {state.number}"
    if state.phase == PREPARING and (state.pinned is None or state.pinned.number != state.number):
        return f"it prepares view {state.number}, which is not announced"
    if state.phase == TRAINING and (state.view is None or state.change is not None):
        return "it trains without a view, or while one is being made"
    return ""


def told(state: State, cause: str, wrong: str) -> Impossible:
    """The error, with the transitions before it."""
    led = "".join(f"\n  {line}" for line in state.recent) or " nothing"
    return Impossible(f"{cause} cannot be: {wrong}; it was {state.phase}: {state.why}\nbefore it:{led}")
