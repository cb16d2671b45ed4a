"""Requests of people about the run or a node, and of a node about its own place."""

from __future__ import annotations

from dataclasses import replace

from ....scheduler.errors import PlanError
from .. import signals as s
from ..faults.restless import noted
from ..given import Given
from ..members import leaves, no_place, plannable, put, trains
from ..phases.beginning import begin, begin_anew
from ..phases.planning import plan_of
from ..state import PREPARING, TRAINING, Result, State
from .departures import progress, remove


def hold(given: Given, state: State, event: s.Hold, now: float) -> Result:
    """A node is drained or paused."""
    state = replace(state, held={**state.held, event.name: event}, why=f"{event.name} is {event.why}")
    return make_room(state, event.name, now)


def release(given: Given, state: State, event: s.Release, now: float) -> Result:
    """The node may train again."""
    state = replace(state, held={name: hold for name, hold in state.held.items() if name != event.name})
    return has_returned(given, state, event.name, event.why, now)


def evict(given: Given, state: State, event: s.Evict, now: float) -> Result:
    """The node is put out and refused from now on."""
    state = replace(state, held={name: hold for name, hold in state.held.items() if name != event.name})
    node = state.nodes.get(event.name)
    if node is None:
        return state, []
    state, effects = remove(given, state, node, event.why, now)
    return state, [s.SendStop((node.name,), f"{node.name} was {event.why}", refused=True), *effects]


def readmit(given: Given, state: State, event: s.Readmit, now: float) -> Result:
    """A person ends the node's eviction; what was held against it is deleted."""
    broken = frozenset(pair for pair in state.broken if event.name not in pair)
    aside = {name: known for name, known in state.held_up_by.items() if name != event.name}
    state = replace(state, broken=broken, held_up_by=aside, suspected={})
    return replace(state, unplannable=frozenset(), why=event.why), []


def pause(given: Given, state: State, event: s.Pause, now: float) -> Result:
    """The whole run is paused."""
    state = replace(state, paused=event.why, why=event.why)
    return begin_anew(state, event.why, now, [s.SendNotice(tuple(sorted(state.nodes)), event.why)])


def go_on(given: Given, state: State, event: s.GoOn, now: float) -> Result:
    """The whole run goes on."""
    state = replace(state, paused="", unplannable=frozenset(), why=event.why)
    everybody = tuple(sorted(state.nodes))
    state, effects = progress(given, state, now)
    return state, [s.SendNotice(everybody, event.why), *effects]


def change_job(given: Given, state: State, event: s.Changed, now: float) -> Result:
    """A person changed a key of the job (``farflung coordinator set``)."""
    state = replace(state, job=event.job, tuned=None, wanted=None)  # plans of the job before
    return begin_anew(state, event.why, now)


def save(given: Given, state: State, event: s.Save, now: float) -> Result:
    """A checkpoint is wanted now."""
    return begin_anew(replace(state, saving=True), f"a checkpoint is wanted: {event.why}", now)


def replan(given: Given, state: State, event: s.Replan, now: float) -> Result:
    """Begin a view change, if the planner would now make a better plan."""
    if state.phase != TRAINING or state.view is None or state.finished:
        return state, []
    try:
        plan = plan_of(given, state, plannable(state), state.view.plan)
    except PlanError:
        return state, []
    return (state, []) if plan.same_placement(state.view.plan) else begin(state, event.why, now)


def make_room(state: State, name: str, now: float) -> Result:
    """Take away a node's place; a node without a place is told why it gets none."""
    node, change = state.nodes.get(name), state.change
    if node is None:
        return state, []
    why, goes = f"{name} is {no_place(state, node)}", leaves(state, node)
    if state.phase == TRAINING and state.view and trains(state, name, state.view):
        if node.told_to_leave is not None:
            return state, []
        words = s.SendLeave((name,), no_place(state, node), stays=not goes)
        return put(state, replace(node, told_to_leave=now)), [words]
    if state.phase == PREPARING and state.pinned and name in state.pinned.plan.nodes:
        return begin(state, why, now)
    if change is not None and name in change.awaited:
        return state, []  # the others may need its state: it is told when the view trains
    if goes:
        return state, [s.SendStop((name,), why)]
    return state, [s.SendNotice((name,), f"{name} is a spare: {why}")]


def leaving(given: Given, state: State, event: s.Leaving, now: float) -> Result:
    """A node has given its last contribution."""
    node = state.nodes[event.name]
    if event.asked and not no_place(state, node):
        return state, []  # it may stay after all
    said: list[s.Effect] = []
    if not (event.asked or node.away or node.parting) and state.view and trains(state, node.name, state.view):
        state, restless = noted(state, node.name, now)
        if restless:
            node = replace(node, stuck=restless)
            said = [s.Say("warning", node.name, f"{node.name} is {restless}")]
    if not event.asked and event.stays:
        node = replace(node, away=event.why)
    elif not event.asked:
        node = replace(node, parting=event.why)
    state = put(state, node)
    if state.phase == TRAINING and state.view and trains(state, node.name, state.view):
        return begin_anew(state, f"{node.name} is {event.why}", now, said)
    state, effects = make_room(state, node.name, now)
    return state, [*said, *effects]


def has_returned(given: Given, state: State, name: str, why: str, now: float) -> Result:
    """The reason why a node had no place has ended."""
    state = replace(state, unplannable=frozenset(), why=why)
    node = state.nodes.get(name)
    if node is not None:
        node = replace(node, away="", told_to_leave=None, passed_over=False, returns=True)
        state = put(state, node)
    return progress(given, state, now)


def came_back(given: Given, state: State, event: s.Back, now: float) -> Result:
    """A node's owner lets it train again."""
    return has_returned(given, state, event.name, f"{event.name} is back", now)
