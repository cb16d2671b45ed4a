"""Spares for which a plan has a place: they follow a stage while the others train, and get the place when they have
caught up."""

from __future__ import annotations

from dataclasses import replace

from ....scheduler.plans import Plan
from .. import signals as s
from ..faults.stuck import STEPS_OF_PATIENCE
from ..given import Given
from ..members import put
from ..resuming.shadows import place_to_follow
from ..state import TRAINING, Node, Result, State
from .awaited import may_wait
from .beginning import begin

LATE_S = 5.0
"""Seconds (or three steps if longer) that all wait for a joiner to fetch its state; after that it follows as a
spare."""
WORTH_S = 60.0
"""Seconds (or ten steps if longer) that the others wait for a node that can't catch up while they train."""


def worth_waiting(state: State) -> float:
    """Seconds that all nodes may wait for one that can't catch up while they train."""
    return max(WORTH_S, STEPS_OF_PATIENCE * state.slowest_s)


def let_catch_up(given: Given, state: State, names: list[str], plan: Plan) -> State:
    """Let nodes that have a place in ``plan`` first follow, as spares, a node with the same layers, if there is one."""
    assert state.view is not None
    for name in names if given.follow else ():
        node = state.nodes[name]
        if not node.cannot_follow and place_to_follow(plan, state.view.plan, name) is not None:
            state = replace(put(state, replace(node, behind=True)), wanted=plan)
    return state


def slow_joiners(given: Given, state: State, now: float) -> list[str]:
    """Joiners that hold up a view's preparation for too long; none if other nodes are late too."""
    change, view = state.change, state.pinned
    assert change is not None and view is not None
    late = change.awaited - set(change.prepared)
    waited = now - change.began
    if not given.follow or view.checkpoint >= 0 or state.view is None or waited < max(LATE_S, 3 * state.slowest_s):
        return []
    joiners = late & set(view.plan.nodes) - {name for names in view.holders for name in names}
    able = [
        name
        for name in sorted(joiners)
        if not state.nodes[name].cannot_follow and place_to_follow(view.plan, state.view.plan, name) is not None
    ]
    if late and set(able) == late:
        return able
    if late - joiners or waited < worth_waiting(state) or change.needs_all:
        return []
    return sorted(late)


def stay_spare(state: State, names: list[str], failed: str) -> Result:
    """Make these nodes stay spares, with the reason, unless the others can't train without them."""
    effects: list[s.Effect] = []
    for name in names:
        reason = f"it cannot catch up with the others: {failed}"
        state = put(state, replace(state.nodes[name], too_slow=reason, behind=False, passed_over=True))
        effects.append(s.Say("warning", name, f"{name} stays a spare: {reason}"))
        effects.append(s.SendNotice((name,), f"{name} is a spare: {reason}"))
    still = any(node.behind for node in state.nodes.values())
    return replace(state, wanted=state.wanted if still else None), effects


def cannot_follow(given: Given, state: State, node: Node, failed: str, now: float) -> Result:
    """A spare cannot catch up while the others train: they wait for it if that is short, else it stays a spare."""
    why = f"{node.name} cannot catch up as a spare: {failed}"
    wanted = node.behind and state.wanted is not None and node.name in state.wanted.nodes
    seconds = given.fetch_s(node.name, state.wanted) if wanted and state.wanted is not None else 0.0
    state = put(state, replace(node, behind=False, cannot_follow=True))
    if not wanted:
        return state, [s.Say("warning", node.name, why)]
    worth = worth_waiting(state)
    if seconds <= worth:
        return begin(state, why, now)
    faster = f"the others would wait for a link {max(1.1, seconds / worth):.2g} times as fast"
    return stay_spare(state, [node.name], f"{failed}; alone it would fetch for {seconds:.0f} s: {faster}")


def admit_caught_up(given: Given, state: State, now: float) -> Result:
    """Give places to the nodes that have caught up; wait for the other followers if they take no more than twice as
    long."""
    behind = [node for node in state.nodes.values() if node.behind]
    for node in behind:
        since = max(state.started, node.moved_at)
        if node.caught_up is None and not may_wait(given, state, {node.name}, now - since):
            return cannot_follow(given, state, node, f"nothing has moved for {now - since:.0f} s", now)
    ready = {node.name: node.caught_up for node in behind if node.caught_up is not None}
    if not ready:
        return state, []
    first = min(ready.values())
    if len(ready) < len(behind) and now - first < first - state.started:
        return state, []
    verb = "have" if len(ready) > 1 else "has"
    return begin(state, f"{', '.join(sorted(ready))} joined and {verb} caught up", now)


def caught_up(given: Given, state: State, event: s.CaughtUp, now: float) -> Result:
    """A spare that follows a stage has caught up, or cannot."""
    node, view = state.nodes[event.name], state.view
    if state.phase != TRAINING or view is None or event.view != view.number or state.finished:
        return state, []
    if all(one.node != node.name for one in view.shadows):
        return state, []
    if node.cannot_follow if event.failed else node.caught_up is not None:
        return state, []  # it says so again
    if event.failed:
        state = replace(state, eligible=state.eligible - {(node.name, node.session)})
        return cannot_follow(given, state, node, event.failed, now)
    state = replace(state, eligible=state.eligible | {(node.name, node.session)})
    return admit_caught_up(given, put(state, replace(node, caught_up=now)), now)
