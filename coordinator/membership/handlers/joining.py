"""Nodes that join, come back to their control stream, and measure their links."""

from __future__ import annotations

from dataclasses import replace

from .. import signals as s
from ..faults.restless import joined_at, noted
from ..faults.stuck import is_aside
from ..given import Given
from ..members import arrived, in_view, put
from ..phases.beginning import begin
from ..state import FLUSHING, PREPARING, TRAINING, WAITING, Node, Result, State
from .departures import progress, remove


def joined(given: Given, state: State, event: s.Joined, now: float) -> Result:
    """A node passed the join checks. An older session of it ends."""
    effects: list[s.Effect] = []
    old = state.nodes.get(event.name)
    if old is not None and old.session != event.session:
        why = f"{event.name} came back as a new session"
        state, effects = remove(given, state, old, why, now)
        effects = [s.Fence(old.name, old.session, why), *effects]
    elif old is not None:
        return state, []
    node = Node(event.name, event.session, event.address, heard=now, dials_out=event.dials_out)
    if is_aside(state, event.name, now):
        node = replace(node, stuck="set aside: it held the others up before")
    else:
        state, restless = noted(state, event.name, now)
        if restless:
            node = replace(node, stuck=restless)
            effects.append(s.Say("warning", event.name, f"{event.name} is {restless}"))
    why = f"{event.name} joined from {event.address}"
    if event.dials_out:
        why += ", where nobody can dial it: it dials the others"
    state = replace(joined_at(put(state, node), now), why=why)
    return state, [*effects, s.Say("joined", event.name, why)]


def hello(given: Given, state: State, event: s.Hello, now: float) -> Result:
    """A control stream is open (again): repeat the orders that may have been lost with the old one."""
    state = put(state, arrived(state.nodes[event.name], event))
    to, change, view = (event.name,), state.change, state.view
    if state.phase == WAITING:
        member = state.view is not None and in_view(state, event.name, state.view)
        if state.restored and (event.view or member) and not state.begun:
            why = f"{event.name} comes back from view {event.view or (state.view.number if state.view else 0)}"
            state = replace(joined_at(state, now), begun=True, why=why)
        return progress(given, state, now)
    if state.phase == FLUSHING and change and event.name in change.awaited and event.name not in change.flushed:
        return state, [s.SendFlush(to, change.number, change.why)]
    if state.phase == PREPARING and change and state.pinned and event.name in change.awaited:
        if event.name not in change.prepared:
            return state, [s.SendView(to, state.pinned, state.pinned.why)]
    elif state.phase == TRAINING and view and in_view(state, event.name, view):
        if event.view == view.number:
            return state, [s.SendStart(to, view.number, f"view {view.number} trains")]
        if event.name in view.plan.nodes:
            return begin(state, f"{event.name} lost its place in view {view.number}", now)
    return state, []


def links_known(given: Given, state: State, event: s.Measured, now: float) -> Result:
    """A node has measured its links."""
    return progress(given, put(state, replace(state.nodes[event.name], measured=True)), now)
