"""What the trials of a view's plan have shown: another choice is a view change, in which every node keeps its place."""

from __future__ import annotations

from dataclasses import replace

from .. import signals as s
from ..given import Given
from ..phases.beginning import begin
from ..state import TRAINING, Result, State


def tuned(given: Given, state: State, event: s.Tuned, now: float) -> Result:
    """Remember what was measured; begin a view change if another choice was faster, or a node waits for one."""
    view = state.view
    if state.phase != TRAINING or view is None or view.number != event.view or (state.finished and not event.anew):
        return state, []
    if event.anew or not event.plan.same_placement(view.plan):
        return begin(replace(state, tuned=event.plan), event.why, now)
    view = replace(view, plan=replace(event.plan, spares=view.plan.spares), why=f"{view.why}; {event.why}")
    said = s.Say("waiting", "", event.why)
    state = replace(state, view=view, why=f"view {view.number} trains: {view.why}")
    return state, [s.KeepView(view, event.why), said]


def lost_in(state: State) -> State:
    """A node of the view that trains is lost. If the view's trials are not decided, one may have taken the node's
    memory: the plan remembers it, even where the node is back before the next plan is made."""
    view = state.view
    if view is None or view.plan.tuning is None or not view.plan.tuning.trials:
        return state
    tuning = replace(view.plan.tuning, broken=view.plan.tuning.broken + 1)
    return replace(state, view=replace(view, plan=replace(view.plan, tuning=tuning)))
