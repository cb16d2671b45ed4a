"""A node has left the run, or its place: the consequences for the view. Also what follows from time alone, in any
phase."""

from __future__ import annotations

from dataclasses import replace

from .. import signals as s
from ..faults.waits import aside
from ..given import Given
from ..members import in_view, put
from ..phases.beginning import begin, wait
from ..phases.changing import look_at_change
from ..phases.finishing import check_finished
from ..phases.fitness import judge_prepared
from ..phases.flushing import check_flushed
from ..phases.training import look_at_training
from ..phases.verdict import Found, PutOut, SetAside
from ..state import DONE, FLUSHING, PREPARING, TRAINING, WAITING, Node, Result, State
from .tuning import lost_in

AT_ONCE = 64
"""Up to this many nodes, the phase is checked at each answer; with more, once a tick."""


def remove(given: Given, state: State, node: Node, why: str, now: float) -> Result:
    """Remove a node. Whether the view changes depends on the node's part in it."""
    nodes = {name: other for name, other in state.nodes.items() if name != node.name}
    state = replace(state, down={pair: found for pair, found in state.down.items() if node.name not in pair})
    sentence = f"{node.name} left: {why}"
    stepped = {name: when for name, when in state.stepped.items() if name != node.name}
    state = replace(state, nodes=nodes, why=sentence, unplannable=frozenset(), stepped=stepped)
    if state.tuned is not None and node.name in state.tuned:
        state = replace(state, tuned=None)  # who comes under this name may be another machine
    effects: list[s.Effect] = [s.Say("left", node.name, why), s.Fence(node.name, node.session, sentence)]
    state, more = missing(given, state, node, sentence, now)
    return state, effects + more


def missing(given: Given, state: State, node: Node, sentence: str, now: float) -> Result:
    """The consequences for the view when a node is gone or can't take part."""
    change = state.change
    if state.phase == TRAINING and state.view and in_view(state, node.name, state.view, node.session):
        training = set(state.view.plan.nodes)
        if node.name in training and training - set(state.finished):
            return begin(lost_in(state), sentence, now)
        return check_finished(given, state, now)
    if state.phase == PREPARING and change and node.name in change.awaited:
        assert state.pinned is not None
        needed = {*state.pinned.plan.nodes, *(name for names in state.pinned.holders for name in names)}
        if node.name in needed:
            return begin(state, sentence, now)
        change = replace(change, awaited=change.awaited - {node.name})
        return check_prepared(given, replace(state, change=change), now)
    if state.phase == FLUSHING and change and node.name in change.awaited:
        flushed = {name: answer for name, answer in change.flushed.items() if name != node.name}
        change = replace(change, awaited=change.awaited - {node.name}, flushed=flushed)
        return check_flushed(given, replace(state, change=change), now)
    return progress(given, state, now)


def set_aside(given: Given, state: State, node: Node, held: str, now: float) -> Result:
    """Give a node that held the others up no place for some time. ``held``: how it did, in words."""
    node = replace(node, stuck=f"set aside: {held}")
    why = f"{node.name} is {node.stuck}"
    state = replace(put(state, node), why=why, unplannable=frozenset())
    state, effects = missing(given, state, node, why, now)
    hint = f"it may have a place again in {(state.held_up_by[node.name].until - now) / 60:.0f} min"
    return state, [s.Say("warning", node.name, f"{why}; {hint}"), *effects]


def left(given: Given, state: State, event: s.Left, now: float) -> Result:
    """A node has said goodbye."""
    return remove(given, state, state.nodes[event.name], event.why, now)


def check_prepared(given: Given, state: State, now: float) -> Result:
    """Start the view if all members are prepared; nodes that can't take part are removed."""
    return carried_out(given, judge_prepared(given, state, now), now)


def carried_out(given: Given, found: Found, now: float) -> Result:
    """Carry out a finding: its state and effects, or the departures that it asks for."""
    state, what = found
    if isinstance(what, PutOut):
        effects: list[s.Effect] = []
        for one in what.outs:
            if (node := state.nodes.get(one.name)) is not None:  # an earlier departure may have removed it
                state, more = remove(given, state, node, one.why, now)
                effects += [*one.said, *more]
        return state, effects
    if isinstance(what, SetAside):
        return set_aside(given, aside(state, what.name, now), state.nodes[what.name], what.why, now)
    return state, what


def progress(given: Given, state: State, now: float) -> Result:
    """Check what may follow now from the time, or from the latest answer."""
    if state.phase == WAITING and len(state.nodes) > AT_ONCE and now != state.ticked:
        return state, []  # the next tick checks all answers together
    if state.phase == WAITING:
        return wait(state, now)
    if state.phase == TRAINING and state.finished and not state.diverged:
        return check_finished(given, state, now)
    if state.phase == TRAINING:
        return look_at_training(given, state, now)
    if state.phase == DONE:
        return state, []
    return carried_out(given, look_at_change(given, state, now), now)
