"""Trainers that do nothing while their I/O process sends heartbeats: all others wait, and no connection breaks.

Every heartbeat says how long ago the trainer did its last action. A trainer that trains and has done nothing for
``hung_s``, or for ten times the slowest recent step if that is longer, is sent a question; a live trainer shows itself
by receiving it. After another ``ASKED_S`` the others go on without the node: it is a spare until its trainer acts
again.
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
"""A trainer whose last action is at most this many seconds ago is alive: one that waits for a message acts every
second."""


def patience(state: State, node: Node) -> float:
    """Seconds for which a trainer may show no action, because a computation may take that long."""
    least = state.rules.hung_s if node.has_stepped else state.rules.first_s  # a first step may compile
    return max(least, STEPS_OF_PATIENCE * state.slowest_s)


def standing(state: State, now: float) -> Iterator[tuple[Node, float]]:
    """(node, seconds) of the nodes for which the others wait and whose trainers have done nothing for so long."""
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
    """The first measure against a trainer that does nothing: ask it, and tell the people."""
    why = f"{node.name}'s trainer has done nothing for {idle:.0f} s, and its machine answers"
    told = f"{why}: the others go on without it in {ASKED_S:.0f} s"
    return replace(node, questioned=now), [s.Say("warning", node.name, told), s.SendNotice((node.name,), told)]


def awake(state: State, now: float) -> Iterator[Node]:
    """The stuck nodes whose trainers act again."""
    stuck = (node for node in state.nodes.values() if node.stuck and now - node.acted < ACTS_S)
    return (node for node in stuck if state.phase == WAITING or not is_aside(state, node.name, now))


def is_aside(state: State, name: str, now: float) -> bool:
    """Whether a node is set aside because it held the others up (waits.py); heartbeats do not change that."""
    return name in state.held_up_by and now < state.held_up_by[name].until
