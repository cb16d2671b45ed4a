"""Trainers that do nothing while their I/O process beats on: everybody waits for them, and no connection breaks.

Every heartbeat says how long ago the trainer did its last action. One that trains and has done nothing for
``hung_s``, or ten times the slowest of the recent steps if that is longer, is asked; whoever is alive answers by taking
the question. ``ASKED_S`` later the others go on without it: it is a spare until it acts again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .. import signals as s
from ..members import trains
from ..state import TRAINING, WAITING, Node, State

STEPS_OF_PATIENCE = 10
ASKED_S = 30.0
ACTS_S = 5.0
"""A trainer that did something so short a time ago is alive: one that waits for a message looks up every second."""


def patience(state: State, node: Node) -> float:
    """Seconds for which a trainer may do nothing that others can see: as long as it may compute."""
    least = state.rules.hung_s if node.has_stepped else state.rules.first_s  # a first step may compile
    return max(least, STEPS_OF_PATIENCE * state.slowest_s)


def standing(state: State, now: float) -> Iterator[tuple[Node, float]]:
    """Nodes for which the others wait while they do nothing, and for how many seconds they have."""
    if state.phase != TRAINING or state.view is None:
        return
    for node in state.nodes.values():
        idle = now - node.acted
        if idle <= state.rules.hung_s:
            continue
        waited_for = trains(state, node.name, state.view) and node.name not in state.finished and not node.stuck
        if waited_for and idle > patience(state, node):
            yield node, idle


def ask(node: Node, idle: float, now: float) -> tuple[Node, list[s.Effect]]:
    """The first that is done about one."""
    why = f"{node.name}'s trainer has done nothing for {idle:.0f} s, and its machine answers"
    told = f"{why}: the others go on without it in {ASKED_S:.0f} s"
    return replace(node, questioned=now), [s.Say("warning", node.name, told), s.SendNotice((node.name,), told)]


def awake(state: State, now: float) -> Iterator[Node]:
    """Stuck nodes whose trainer does something again."""
    stuck = (node for node in state.nodes.values() if node.stuck and now - node.acted < ACTS_S)
    return (node for node in stuck if state.phase == WAITING or not is_aside(state, node.name, now))


def is_aside(state: State, name: str, now: float) -> bool:
    """Whether a node is set aside because it held the others up (waits.py); heartbeats do not change that."""
    return name in state.held_up_by and now < state.held_up_by[name].until
