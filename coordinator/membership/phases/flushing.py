"""Phase ``flushing``: all nodes report their state; then the next view's position is decided and the view announced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ....proto.connections.patience import Watch
from ....scheduler.errors import PlanError
from ....scheduler.plans import Plan
from .. import signals as s
from ..given import Given
from ..members import in_view, lacks_checkpoint, no_place
from ..resuming.handovers import handovers, lost
from ..resuming.resume import Resume, fresh_layers, planned_nodes, resume
from ..resuming.shadows import place_to_follow, shadows
from ..state import FLUSHING, PREPARING, TRAINING, WAITING, Change, Result, State
from .beginning import wait
from .planning import plan_of


def take_flushed(given: Given, state: State, event: s.Flushed, now: float) -> Result:
    """A node has stopped training and reports its state."""
    change = state.change
    if state.phase != FLUSHING or change is None or event.view != change.number or event.name not in change.awaited:
        return state, say_again(state, event.name, event.view)
    change = replace(change, flushed={**change.flushed, event.name: event})
    return check_flushed(given, replace(state, change=change), now)


def check_flushed(given: Given, state: State, now: float) -> Result:
    """When all have answered, decide the next view's position and announce the view."""
    change = state.change
    assert change is not None
    if not change.awaited:
        return wait(replace(state, phase=WAITING, change=None), now)
    if len(change.flushed) < len(change.awaited):  # some have not answered yet
        return state, []
    if state.paused:
        return replace(state, phase=WAITING, change=None, why=state.paused), []
    if state.aside is not None:
        return state, []  # it is not known yet which checkpoint remains
    decision = resumed_at(state, change.flushed)
    names = tuple(sorted(change.awaited))
    current = state.pinned or state.view
    if decision.checkpoint >= 0:  # all load the checkpoint, so no node is ahead
        state = replace(state, nodes={name: replace(one, behind=False) for name, one in state.nodes.items()})
    try:
        plan = plan_of(given, state, names, current.plan if current else None)
    except PlanError as error:
        return _no_plan(state, names, error)
    if set(decision.restores) - set(plan.nodes):  # a node without a place contributes nothing
        having = {
            name: answer if name in plan.nodes else replace(answer, kept=frozenset())
            for name, answer in change.flushed.items()
        }
        decision = resumed_at(state, having)
    return _announced(state, _announcement(given, state, change, plan, decision), decision, now)


def _no_plan(state: State, names: tuple[str, ...], error: PlanError) -> Result:
    """These nodes are too few to train: wait for more."""
    stuck = "".join(f"; {node.name} is {node.stuck}" for node in state.nodes.values() if node.stuck)
    why = f"no plan for {', '.join(names)}: {error}{stuck}"
    willing = frozenset(name for name in names if not no_place(state, state.nodes[name]))
    state = replace(state, phase=WAITING, change=None, why=why, unplannable=willing)
    return state, [s.SendNotice(names, why), s.Say("waiting", "", why)]


def _announcement(given: Given, state: State, change: Change, plan: Plan, decision: Resume) -> s.Announcement:
    """The view that continues as ``decision`` says."""
    why = f"{change.why}; {decision.why}; {plan.why}" if plan.why else f"{change.why}; {decision.why}"
    if not given.follow and decision.checkpoint < 0 and (fresh := fresh_layers(plan, decision.holders)):
        why += f"; {fresh} begins at the last average: nobody who has it now had it before"
    handed, lost_words = _handed_over(state, change, plan, decision)
    return s.Announcement(
        change.number,
        plan,
        tuple(state.nodes[name].member for name in sorted(change.awaited)),
        decision.position,
        sections=decision.sections,
        holders=decision.holders,
        checkpoint=decision.checkpoint,
        norm=decision.norm,
        why=why + lost_words,
        job=state.job,
        save=state.saving
        or any(answer.save for answer in change.flushed.values())
        or lacks_checkpoint(state, decision.position.step),
        shadows=spares_follow(given, state, plan, decision.holders),
        restores=decision.restores,
        kept_in=state.unsent.view if state.unsent is not None and decision.restores else 0,
        handovers=handed,
    )


def _handed_over(state: State, change: Change, plan: Plan, decision: Resume) -> tuple[tuple[s.Handover, ...], str]:
    """Handovers of the residuals of nodes that lose their places; and, in words, the residuals that are lost."""
    handed: tuple[s.Handover, ...] = ()
    if decision.checkpoint < 0 and state.view is not None:
        gone = {name for name, node in state.nodes.items() if node.parting or node.away}
        unsent = {name: answer.unsent for name, answer in change.flushed.items()}
        handed = handovers(state.view.plan, plan, decision.holders, gone, state.rules.residuals, unsent)
    residuals = state.rules.residuals
    if residuals is None or not residuals.shown_to_nobody:
        return handed, ""
    said = lost(handed, change.flushed, residuals.shown_to_nobody, residuals.gradient)
    return (), f"; {said}" if said else ""


def _announced(state: State, view: s.Announcement, decision: Resume, now: float) -> Result:
    """The state after the announcement. The view's position is pinned now: some members may adopt it before others get
    it."""
    effects: list[s.Effect] = [
        s.Say("warning", name, f"{name} has another chain of rounds than its group and fetches the group's weights")
        for name in decision.dissent
    ]
    eligible = planned_nodes(view.plan, view)
    if decision.checkpoint < 0:
        # Outvoted nodes become eligible only when the view starts: until then they may still hold their old state.
        eligible |= state.eligible
        eligible = frozenset(who for who in eligible if who[0] not in decision.dissent)
    change = state.change
    assert change is not None
    watch = Watch("the view", now, state.rules.prepare_s)
    state = replace(
        state,
        phase=PREPARING,
        pinned=view,
        eligible=eligible,
        change=replace(change, began=now, prepared={}, watch=watch),
        why=f"view {view.number} is announced: {view.why}",
    )
    return state, [*effects, s.SendView(tuple(sorted(change.awaited)), view, view.why)]


def resumed_at(state: State, flushed: Mapping[str, s.Flushed]) -> Resume:
    """The position and state from which the next view continues."""
    return resume(
        state.rules,
        state.view,
        state.pinned,
        state.eligible,
        flushed,
        state.reported,
        newest=state.newest,
        judge=not state.restored,  # after a restart it is unknown whether the last announced view has started
        unsent=state.unsent,
        kept=state.kept,
    )


def spares_follow(given: Given, state: State, plan: Plan, holders: tuple[tuple[str, ...], ...]) -> tuple[s.Shadow, ...]:
    """The places that the spares of a plan follow."""
    if not given.follow:
        return ()
    has_all = {name for name in plan.spares if any(name in names for names in holders)}
    spares = [
        name
        for name in plan.spares
        if (node := state.nodes.get(name)) and not no_place(state, node)
        if node.behind or not (node.cannot_follow or node.too_slow) or name in has_all
    ]
    wanted = {}
    for name in spares:
        if state.nodes[name].behind and state.wanted is not None and name in state.wanted.nodes:
            place = place_to_follow(state.wanted, plan, name)
            if place is not None:
                wanted[name] = place
    return shadows(plan, spares, holders, wanted)


def say_again(state: State, name: str, view: int) -> list[s.Effect]:
    """The orders to repeat to a node that reports once more that it has flushed for, or prepared, a view."""
    to, change, now = (name,), state.change, state.view
    if state.phase == FLUSHING and change and name in change.awaited and view < change.number:
        return [] if name in change.flushed else [s.SendFlush(to, change.number, change.why)]
    if state.phase == PREPARING and change and state.pinned and name in change.awaited:
        if view == change.number and name not in change.prepared:
            return [s.SendView(to, state.pinned, state.pinned.why)]
    elif state.phase == TRAINING and now and view == now.number and in_view(state, name, now):
        return [s.SendStart(to, view, f"view {view} trains")]
    return []
