"""A tick of the clock: silent nodes, trainers that do nothing, nodes for which others wait."""

from __future__ import annotations

from dataclasses import replace

from .. import signals as s
from ..faults.stuck import ASKED_S, ask, awake, standing
from ..faults.waits import look
from ..given import Given
from ..members import no_place, put
from ..phases.beginning import begin_anew
from ..state import TRAINING, Node, Result, State
from .connections import plan_apart
from .departures import missing, progress, remove, set_aside

STALL_S = 1.0
"""Seconds. After a longer gap between two ticks the coordinator itself had stopped, so no node counts as silent."""


def tick(given: Given, state: State, event: s.Tick, now: float) -> Result:
    """Check everything that follows from time alone."""
    state = replace(state, stored=event.stored, lacking=event.lacking)
    stalled = state.ticked is not None and now - state.ticked > STALL_S
    state = replace(state, ticked=now)
    if stalled:
        nodes = {
            name: replace(node, heard=now, moved_at=now, acted=now, doubted=False) for name, node in state.nodes.items()
        }
        change = state.change and replace(state.change, began=now)
        return replace(state, nodes=nodes, moved_on=now, standstill=None, change=change, ended=None), []
    effects: list[s.Effect] = []
    for node in list(state.nodes.values()):
        silent = now - node.heard
        if not node.arrived:
            if silent > state.rules.arrive_s:
                why = f"it joined and did not come within {state.rules.arrive_s:g} s"
                state, more = remove(given, state, node, why, now)
                effects += more
            continue
        if silent <= state.rules.doubt_s or state.nodes.get(node.name) is not node:
            continue
        if silent > state.rules.silence_s:
            state, more = remove(given, state, node, f"no heartbeat for {state.rules.silence_s:g} s", now)
            effects += more
        elif not node.doubted:
            state = put(state, replace(node, doubted=True))
            why = f"{node.name} is silent for {silent:.0f} s"
            effects.append(s.Dial(node.name, node.session, node.address, why))
    for node, idle in list(standing(state, now)):
        if state.phase == TRAINING:
            state, more = ask_trainer(given, state, node, idle, now)
            effects += more
    state, more = held_up(given, state, now)
    effects += more
    for node in list(awake(state, now)):
        why, node = f"{node.name}'s trainer acts again", replace(node, stuck="", passed_over=False, returns=True)
        state = replace(put(state, node), unplannable=frozenset(), why=why)
    late = [
        name
        for name, node in state.nodes.items()
        if node.told_to_leave is not None and now - node.told_to_leave > state.rules.leave_s
    ]
    for name in late:
        if state.phase == TRAINING and (why := no_place(state, state.nodes[name])):
            state, more = begin_anew(state, f"{name} is {why}", now)
            effects += more
    state, more = progress(given, state, now)
    return state, effects + more


def ask_trainer(given: Given, state: State, node: Node, idle: float, now: float) -> Result:
    """All wait for a node whose trainer does nothing: it is asked first; at the next call the others go on without
    it."""
    if node.questioned is None:
        node, effects = ask(node, idle, now)
        return put(state, node), effects
    if now - node.questioned <= ASKED_S:
        return state, []
    node = replace(node, stuck=f"stuck: its trainer has done nothing for {idle:.0f} s")
    why = f"{node.name} is {node.stuck}"
    state = replace(put(state, node), why=why, unplannable=frozenset())
    state, effects = missing(given, state, node, why, now)
    return state, [s.Say("warning", node.name, f"{why}; it may have a place again when it acts"), *effects]


def held_up(given: Given, state: State, now: float) -> Result:
    """No step ends although all trainers report actions: the nodes' reports of their waits show which one holds the
    others up."""
    state, found = look(state, now, given.fetch_s)
    if not found.why:
        return state, []
    if found.asked:
        return state, [s.Say("warning", "", found.why), s.SendNotice(found.asked, found.why)]
    if found.apart is not None:
        return plan_apart(given, state, s.Apart(*found.apart, f"{found.why}: they are planned apart"), now)
    node = state.nodes.get(found.out)
    if node is None:
        return state, [s.Say("warning", "", found.why)]
    return set_aside(given, state, node, found.why, now)
