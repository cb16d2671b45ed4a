"""Phase ``training``: connections that stay down, histories that differ, and joiners for which a plan has a place."""

from __future__ import annotations

from dataclasses import replace

from ....scheduler.errors import PlanError
from .. import signals as s
from ..given import Given
from ..members import no_place, plannable, put
from ..state import Result, State
from .beginning import begin, is_settled, measure
from .catching_up import admit_caught_up, let_catch_up
from .planning import plan_of

BROKEN_AFTER, BROKEN_WITHIN_S = 3, 60.0
"""Two nodes whose connection breaks this often within this many seconds are planned apart."""
TRIPS_DOWN = 3
"""Round trips that are added to ``Rules.down_s`` before a broken connection costs a view change."""
DIVERGED_AGAIN_S = 10.0
"""Least seconds between two view changes because of differing histories."""


def look_at_training(given: Given, state: State, now: float) -> Result:
    """Decisions that follow from time alone while a view trains and no node has finished."""
    if state.diverged:
        return compare_histories(state, now)
    for work in (look_at_connections, admit_caught_up):
        state, effects = work(given, state, now)
        if effects:
            return state, effects
    return newcomers(given, state, now)


def look_at_connections(given: Given, state: State, now: float) -> Result:
    """A needed connection that is down for too long causes a view change, and another plan if it happens often."""
    for (by, name), (since, why) in state.down.items():
        trip = max(given.known.round_trip_s(by), given.known.round_trip_s(name))
        if now - since <= state.rules.down_s + TRIPS_DOWN * trip:
            continue
        pair = (min(by, name), max(by, name))
        recent = [item for item in state.complaints if now - item[0] < BROKEN_WITHIN_S]
        recent.append((now, *pair))
        state = replace(state, complaints=tuple(recent))
        sentence = f"the connection between {by} and {name} has been down for {now - since:.0f} s: {why}"
        effects: list[s.Effect] = []
        if sum(1 for item in recent if item[1:] == pair) >= BROKEN_AFTER and pair not in state.broken:
            state = replace(state, broken=state.broken | {pair})
            planned_apart = f"{pair[0]} and {pair[1]} keep losing each other and are planned apart"
            effects.append(s.Say("warning", by, planned_apart))
        state, more = begin(state, sentence, now)
        return state, effects + more
    return state, []


def newcomers(given: Given, state: State, now: float) -> Result:
    """Connected nodes that are not in the view: let them measure their links, then check whether a plan has places for
    them."""
    view = state.view
    assert view is not None
    sessions = view.sessions
    outside = (  # checked first, because of a thousand nodes nearly all are in the view
        node
        for node in state.nodes.values()
        if sessions.get(node.name) != node.session or (node.returns and node.name not in view.plan.nodes)
    )
    new = [
        node for node in outside if node.attending and node.ready and not node.passed_over and not no_place(state, node)
    ]
    if not new or not is_settled(state, now):
        return state, []
    state, effects = measure(state, new, now)
    if not all(state.nodes[node.name].measured for node in new):
        return state, effects
    names = ", ".join(sorted(node.name for node in new))
    present = plannable(state)
    try:
        plan = plan_of(given, state, present, view.plan)
    except PlanError as error:
        plan, why = view.plan, str(error)
    else:
        why = "the plan is as fast without it"
    if plan.same_placement(view.plan):
        for node in new:
            said = plan.spares.get(node.name, why)
            state = put(state, replace(state.nodes[node.name], passed_over=True))
            effects.append(s.SendNotice((node.name,), f"{node.name} is a spare: {said}"))
        return replace(state, why=f"{names} is held as a spare: {why}"), effects
    lacking = [node.name for node in new if (node.name, node.session) not in state.eligible]
    late = [name for name in lacking if name in plan.nodes and given.fetch_s(name, plan) > state.slowest_s]
    state = let_catch_up(given, state, late, plan)
    back = all(node.returns for node in new)
    state, more = begin(state, f"{names} {'is back' if back else 'joined'}", now)
    return state, effects + more


def compare_histories(state: State, now: float) -> Result:
    """Begin the view change for differing histories, unless the last such one was too recent."""
    assert state.diverged is not None
    if state.judged is not None and now - state.judged < DIVERGED_AGAIN_S:
        return state, []
    name, peer = state.diverged
    why = f"{name} and {peer} hold different histories of a section"
    return begin(replace(state, judged=now), why, now)
