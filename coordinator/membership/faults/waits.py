"""Finds the node that holds up a run: no step is finished although every node's heartbeat claims progress.

A member that has waited for long reports for which node. What a node says of itself does not count: a node *explains*
the standstill if all others that wait do so for it, directly or through each other. A single faulty node always
explains it, for the reports of the others are true and lead to it. So if exactly one node explains it, that node is at
fault, whoever lied. If several do, two nodes say that they wait for each other, and either may lie: they are planned
apart, and the node that is suspected again, with one partner after another, is at fault.

Pure: the coordinator's own clock shows whether the run stands still, by when most members took their last step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from ....scheduler.plans import Plan
from ..members import trains
from ..state import TRAINING, State
from .standstill import Aside, Standstill
from .stuck import ASKED_S, STEPS_OF_PATIENCE

CLAIM_S = 25.0
"""Seconds for which a node's claim counts; the node repeats it every 10 s."""
EVALUATING = 3
"""Time of an evaluation, in multiples of the time to train on as many samples."""
MOVING = 10
"""Factor on the patience where nodes say that bytes arrive."""
ASIDE_S = 600.0
"""Seconds without a place for a node that held the others up; doubled each time."""

Edges = Mapping[str, frozenset[str]]
"""Who waits for whom."""


@dataclass(frozen=True)
class Finding:
    """What to do about a standstill; ``why`` in a sentence, empty: nothing. ``asked``: nodes that may still answer by
    finishing a step. ``out``: nodes that lose their place. ``apart``: nodes that are planned apart."""

    why: str = ""
    asked: tuple[str, ...] = ()
    out: str = ""
    apart: tuple[str, str] | None = None


def may_wait_for(plan: Plan, name: str, gradient: bool) -> frozenset[str]:
    """For whom a node of a plan can wait: its group, its neighbours, and who commits its steps; a committer for all of
    them. The first and the last stage may share a section."""
    stages, ends = set(plan.stages_of(name)), {0, len(plan.stages) - 1}
    if stages & ends:
        stages |= ends
    row = plan.pipelines[plan.pipeline_of(name)]
    near = {one for pair in pairwise(row) if name in pair for one in pair}
    committed = plan.nodes if gradient else row
    commits = set(committed) if name == committed[0] else {committed[0]}
    return frozenset({one for stage in stages for one in plan.group(stage)} | near | commits) - {name}


def explaining(edges: Edges) -> frozenset[str]:
    """The nodes whose fault would explain that all of these wait; a node's own report does not clear it."""
    waiting = {name for name, peers in edges.items() if peers}
    waited = {peer for name in waiting for peer in edges[name]}
    silent = waited - waiting
    if len(silent) > 1:
        return frozenset()  # two that others wait for compute, or say so
    back: dict[str, set[str]] = {}
    for name in waiting:
        for peer in edges[name]:
            back.setdefault(peer, set()).add(name)
    found = set()
    for one in silent or waited:
        reached, new = {one}, [one]
        while new:
            more = back.get(new.pop(), set()) - reached
            reached |= more
            new += more
        if waiting <= reached:
            found.add(one)
    return frozenset(found)


def edges_of(state: State, now: float) -> dict[str, frozenset[str]]:
    """Node -> nodes that it waits for. Nodes that have finished the run wait for those that have not: the coordinator
    knows that itself."""
    view = state.view
    assert view is not None
    left = frozenset(name for name in view.plan.nodes if name not in state.finished)
    edges = {}
    for name in view.plan.nodes:
        said = state.waits.get(name)
        if name in state.finished:
            edges[name] = left
        elif said is not None and now - said.at <= CLAIM_S and trains(state, name, view):
            edges[name] = said.peers & may_wait_for(view.plan, name, state.rules.mode == "gradient")
    return edges


def still_since(state: State) -> float:
    """When a node took the last step after which more than half of those who train have taken none."""
    assert state.view is not None
    since = max(state.started, state.moved_on)
    last = sorted(max(since, state.stepped.get(name, 0.0)) for name in state.view.plan.nodes)
    return last[len(last) // 2]


def patience(state: State, now: float, fetch_s: Callable[[str, Plan], float]) -> float:
    """Seconds for which no step need end: as many steps as a trainer may be silent for, an evaluation if one is due,
    and where bytes move, or a node waits for the coordinator, what they may take."""
    view, rules = state.view, state.rules
    assert view is not None
    known = (state.nodes.get(name) for name in view.plan.nodes)
    new = any(node is not None and not node.has_stepped for node in known)
    seconds = max(rules.first_s if new else rules.hung_s, STEPS_OF_PATIENCE * state.slowest_s)
    if _evaluates(state):
        seconds += EVALUATING * rules.evaluation * state.slowest_s
    said = [claim for name, claim in state.waits.items() if name in view.plan and now - claim.at <= CLAIM_S]
    if now - still_since(state) > seconds and any(claim.moves or not claim.peers for claim in said):
        fetch = max(fetch_s(name, view.plan) for name in view.plan.nodes)
        seconds = MOVING * max(seconds, fetch)
    return seconds


def _evaluates(state: State) -> bool:
    """Whether an evaluation may be going on."""
    assert state.view is not None
    changed = json.loads(state.job).get("train", {}) if state.job else {}
    every = changed.get("eval_every", state.rules.eval_every)
    begun = state.view.position.step
    reached = sorted(state.reported.get(name, begun) for name in state.view.plan.nodes)
    # Of each: another pipeline may be a step ahead.
    return bool(state.finished) or any(step == begun or bool(every and step % every == 0) for step in set(reached))


def look(state: State, now: float, fetch_s: Callable[[str, Plan], float]) -> tuple[State, Finding]:
    """Whether a node holds the run up, and what follows. The returned state remembers the suspects."""
    view = state.view
    if state.phase != TRAINING or view is None or len(view.plan.nodes) < 2:
        return state, Finding()
    since, nodes = still_since(state), state.nodes.values()
    if now - since <= state.rules.hung_s or any(one.questioned is not None and not one.stuck for one in nodes):
        return _forgotten(state), Finding()
    if now - since <= patience(state, now, fetch_s):
        return _forgotten(state), Finding()
    edges = edges_of(state, now)
    suspects = explaining(edges)
    before = state.standstill
    suspects &= before.suspects if before is not None else suspects
    if not suspects:
        return _forgotten(state), Finding()
    stood, names = f"no step has ended for {now - since:.0f} s", " and ".join(sorted(suspects))
    if before is None:
        why = f"{stood}, and the others wait for {names}: in {ASKED_S:.0f} s they go on without what holds them up"
        return replace(state, standstill=Standstill(now, suspects)), Finding(why, asked=tuple(sorted(suspects)))
    if now - before.asked <= ASKED_S:
        return replace(state, standstill=replace(before, suspects=suspects)), Finding()
    state = replace(state, standstill=None, moved_on=now)
    suspected = dict(state.suspected)
    for name in suspects:
        suspected[name] = suspected.get(name, 0) + 1
    most = max(suspected.values())
    culprits = suspects if len(suspects) == 1 else {name for name, count in suspected.items() if count == most}
    if len(culprits) == 1:
        (out,) = culprits
        voices = sorted(name for name, peers in edges.items() if out in peers)
        return aside(state, out, now), Finding(f"{stood}, and {' and '.join(voices)} waited for it", out=out)
    state = replace(state, suspected=suspected)
    pairs = ((one, other) for one in sorted(suspects) for other in sorted(suspects) if one < other)
    for pair in pairs:
        one, other = pair
        if pair not in state.broken and other in edges.get(one, ()) and one in edges.get(other, ()):
            return state, Finding(f"{stood}, and {one} and {other} say that each waits for the other", apart=pair)
    return state, Finding(f"{stood}: one of {names} holds the others up, and nobody can tell which")


def _forgotten(state: State) -> State:
    return state if state.standstill is None else replace(state, standstill=None)


def aside(state: State, name: str, now: float) -> State:
    """Set the node aside for some time: its heartbeats do not matter, and a restart does not end it."""
    times = state.held_up_by[name].times if name in state.held_up_by else 0
    held_up_by = {**state.held_up_by, name: Aside(times + 1, now + ASIDE_S * 2**times)}
    return replace(state, held_up_by=held_up_by, suspected={})
