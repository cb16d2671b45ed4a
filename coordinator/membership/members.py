"""The state of the membership machine (machine.py): frozen values, and what follows from them directly."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from . import signals as s
from .questions import Planner as Planner
from .state import WAITING, Node, State


def expected_bases(
    known: Mapping[int, int], votes: Sequence[Mapping[int, int]], new: Sequence[Mapping[int, int]]
) -> dict[int, int]:
    """Layer -> the expected hash of its frozen weights: from ``known``; else the majority of the nodes that trained in
    the last view (``votes``); else the majority of the others (``new``). On a tie the node that joined first
    decides."""
    found = dict(known)
    for group in (votes, new):
        held: dict[int, Counter[int]] = {}
        for bases in group:
            for layer, content in bases.items():
                held.setdefault(layer, Counter())[content] += 1
        found = {layer: counts.most_common(1)[0][0] for layer, counts in held.items()} | found
    return found


def altered(node: Node, **changes: Any) -> Node:
    """``replace`` at a fifth of its cost, for a thousand calls a second: no ``__init__`` is called."""
    new = object.__new__(Node)
    new.__dict__.update(node.__dict__)
    new.__dict__.update(changes)
    return new


def put(state: State, node: Node) -> State:
    return replace(state, nodes={**state.nodes, node.name: node})


def kept_apart(state: State, pairs: Set[tuple[str, str]]) -> State:
    """The state in which no plan has these pairs (names in order) in one group, nor one that was made before."""
    return replace(state, broken=state.broken | pairs, tuned=None, wanted=None, unplannable=frozenset())


def beaten(state: State, beats: s.Beats, now: float) -> State:
    """The state after these heartbeats: the table of nodes is copied once for all of them."""
    nodes = dict(state.nodes)
    for one in beats.heard:
        node = nodes.get(one.name)
        if node is not None and node.session == one.session:
            moved_at = node.moved_at if one.moved == node.moved else now
            ready = node.ready or one.ready
            acted = now - one.idle_s
            questioned = node.questioned if node.questioned is None or acted < node.questioned else None
            nodes[one.name] = altered(
                node,
                heard=now,
                doubted=False,
                ready=ready,
                moved=one.moved,
                moved_at=moved_at,
                acted=acted,
                questioned=questioned,
            )
    return replace(state, nodes=nodes)


def no_place(state: State, node: Node) -> str:
    """Why a node may have no place in a plan; empty where it may have one."""
    hold = state.held.get(node.name)
    return hold.why if hold else node.parting or node.stuck or node.away


def leaves(state: State, node: Node) -> bool:
    """Whether a node will leave as soon as the others can do without it."""
    hold = state.held.get(node.name)
    return bool(node.parting) or (hold is not None and hold.leaves)


def trains(state: State, name: str, view: s.Announcement) -> bool:
    return name in view.plan and in_view(state, name, view)


def all_finished(state: State) -> bool:
    return state.view is not None and set(state.view.plan.nodes) <= set(state.finished)


def arrived(node: Node, event: s.Hello) -> Node:
    """The node with its stream open. The request to measure may have been lost with the stream before, so it is
    repeated."""
    return replace(node, attending=True, arrived=True, ready=node.ready or event.view > 0, asked=None)


def in_view(state: State, name: str, view: s.Announcement, session: str | None = None) -> bool:
    """Whether this session of the node is in the view."""
    if session is None:
        node = state.nodes.get(name)
        session = node.session if node else ""
    return view.session_of(name) == session


def lacks_checkpoint(state: State, step: int) -> bool:
    """Whether a view that continues after ``step`` has to begin with making a checkpoint: the last view's is not
    complete, and a node that had to send a file of it is gone."""
    view = state.view
    if view is None:
        return False
    changed = json.loads(state.job).get("checkpoint", {}) if state.job else {}
    every = changed.get("every", state.rules.checkpoint_every)
    made = step - step % every if every else 0
    if made <= view.position.step:
        made = view.position.step if view.save else 0
    if not state.newest.step < made <= step:
        return False
    senders = {view.plan.keeper(stage) for stage in range(len(view.plan.stages))}
    return any(not in_view(state, name, view) for name in senders)


def plannable(state: State) -> tuple[str, ...]:
    """The nodes that may be in the next view: members of the last one, and nodes with measured links and an open
    stream.

    When a view trains, or has to be replaced, only those whose trainer is up; at the start, all wait for all. Never a
    node whose trainer does nothing, because it would not answer the flush.
    """
    members = set()
    for view in (state.view, state.pinned):
        if view is not None:
            members |= {(member.name, member.session) for member in view.members}
    return tuple(
        sorted(
            node.name
            for node in state.nodes.values()
            if not node.stuck
            and (
                (node.name, node.session) in members
                or (node.attending and node.measured and (node.ready or state.phase == WAITING))
            )
        )
    )
