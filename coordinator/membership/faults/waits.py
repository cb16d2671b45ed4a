"""Finds the node that holds up a run: no step is finished although every node's heartbeat claims progress.

A member that has waited for long reports the node for which it waits. A node *explains* the standstill if all other
waiting nodes wait for it, directly or through each other; its own report does not count for this. A single faulty node
always explains the standstill, because the other nodes' reports are true and lead to it. So if exactly one node
explains it, that node is at fault. If several do, two nodes each report that they wait for the other, and either may
lie: they are planned apart. A node that is suspected again with another partner is at fault.

Pure. Whether the run stands still follows from the times, by the coordinator's clock, of the members' last steps.
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
"""Seconds for which a node's report counts; the node repeats it every 10 s."""
EVALUATING = 3
"""The assumed time of an evaluation, in multiples of the time to train on as many samples."""
MOVING = 10
"""Factor on the patience where nodes say that bytes arrive."""
ASIDE_S = 600.0
"""Seconds for which a node that held the others up gets no place; doubled each time."""

Edges = Mapping[str, frozenset[str]]
"""Node -> nodes for which it waits."""


@dataclass(frozen=True)
class Finding:
    """The decision about a standstill, with ``why``, a sentence; empty: nothing to do. ``asked``: nodes that may still
    show that they work by finishing a step. ``out``: the node that loses its place. ``apart``: the two nodes that are
    planned apart."""

    why: str = ""
    asked: tuple[str, ...] = ()
    out: str = ""
    apart: tuple[str, str] | None = None


def may_wait_for(plan: Plan, name: str, gradient: bool) -> frozenset[str]:
    """The nodes for which a node of a plan may wait: its group, its neighbours, and the committer of its steps; a
    committer may wait for all. The first and the last stage may share a section."""
    stages, ends = set(plan.stages_of(name)), {0, len(plan.stages) - 1}
    if stages & ends:
        stages |= ends
    row = plan.pipelines[plan.pipeline_of(name)]
    near = {one for pair in pairwise(row) if name in pair for one in pair}
    committed = plan.nodes if gradient else row
    commits = set(committed) if name == committed[0] else {committed[0]}
    return frozenset({one for stage in stages for one in plan.group(stage)} | near | commits) - {name}


def explaining(edges: Edges) -> frozenset[str]:
    """The nodes each of which alone could be the cause of all these waits. A node's own report does not exonerate
    it."""
    waiting = {name for name, peers in edges.items() if peers}
    waited = {peer for name in waiting for peer in edges[name]}
    silent = waited - waiting
    if len(silent) > 1:
        return frozenset()  # two nodes for which others wait report that they compute
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
    """The time of the last step since which more than half of the training nodes have finished none."""
    assert state.view is not None
    since = max(state.started, state.moved_on)
    last = sorted(max(since, state.stepped.get(name, 0.0)) for name in state.view.plan.nodes)
    return last[len(last) // 2]


def patience(state: State, now: float, fetch_s: Callable[[str, Plan], float]) -> float:
    """Seconds within which a step must end: the patience for a trainer; more if an evaluation is due, if bytes move, or
    if a node waits for the coordinator."""
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
    # Of each node, because another pipeline may be a step ahead.
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
        told = f"in {ASKED_S:.0f} s they go on without the node that holds them up"
        why = f"{stood}, and the others wait for {names}: {told}"
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
