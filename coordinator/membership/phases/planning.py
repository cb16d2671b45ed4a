"""Plans of the nodes that may have a place, and whether the others could train without one of them."""

from __future__ import annotations

from dataclasses import replace

from ....scheduler.errors import PlanError
from ....scheduler.plans import Plan
from ..given import Given
from ..members import no_place, plannable
from ..questions import Question, answer_to
from ..resuming.shadows import CATCHES_UP
from ..state import DONE, WAITING, State


def plan_of(given: Given, state: State, names: tuple[str, ...], current: Plan | None) -> Plan:
    """A plan for the nodes of ``names`` that may have a place; the others are spares, with the reason."""
    without = {name: why for name in names if (why := no_place(state, state.nodes[name]))}
    willing = tuple(name for name in names if name not in without)
    if not willing:
        raise PlanError("; ".join(f"{name} is {why}" for name, why in without.items()) or "no node is left")
    if current is not None:
        spares = {name: why for name, why in current.spares.items() if name in willing}
        current = current if spares == current.spares else replace(current, spares=spares)
    behind = {name: CATCHES_UP for name in willing if state.nodes[name].behind}
    behind |= {name: why for name in willing if (why := state.nodes[name].too_slow)}
    wanted = state.wanted
    try:
        ready = tuple(name for name in willing if name not in behind)
        if wanted is not None and {*wanted.nodes, *wanted.spares} == set(ready):
            plan = wanted  # it was made for exactly these nodes, and they hold the state for their places
        elif (tuned := state.tuned) is not None and _all_there(tuned, ready, {*behind, *without}):
            plan = replace(tuned, spares={name: why for name, why in tuned.spares.items() if name in ready})
        elif ready:
            plan = search(given, state, ready, current)
        else:
            raise PlanError(f"nobody but {', '.join(behind)} is there")
    except PlanError:
        if not behind:
            raise
        plan, behind = search(given, state, willing, current), {}
    spares = {**plan.spares, **behind, **without}
    return plan if spares == plan.spares else replace(plan, spares=spares)


def _all_there(plan: Plan, ready: tuple[str, ...], kept_out: set[str]) -> bool:
    """Whether all nodes of a plan may train, and all others that may are its spares."""
    return set(plan.nodes) <= set(ready) and {*plan.nodes, *plan.spares} - kept_out == set(ready)


def cannot_train_without(given: Given, state: State, names: set[str]) -> bool:
    """Whether the other nodes could not train without these nodes."""
    try:
        others = (name for name in plannable(state) if not no_place(state, state.nodes[name]))
        current = state.view.plan if state.view else None
        search(given, state, tuple(name for name in others if name not in names), current)
    except PlanError:
        return True
    return False


def search(given: Given, state: State, names: tuple[str, ...], current: Plan | None) -> Plan:
    """A plan for these nodes. PlanError: there is none. Unanswered: it has to be asked for first."""
    if given.planner is not None:
        return given.planner(names, current, state.broken)
    return answer_to(Question(names, current, state.broken), state.answers)


def why_needed(given: Given, state: State, name: str) -> str:
    """Why the others could not train if this node had no place; empty where they could, or no view trains now.
    Unanswered: this needs a plan that is not yet among ``state.answers``."""
    if state.view is None or state.phase in (WAITING, DONE) or name not in state.nodes:
        return ""
    try:
        plan_of(given, state, tuple(other for other in plannable(state) if other != name), state.view.plan)
    except PlanError as error:
        return str(error)
    return ""
