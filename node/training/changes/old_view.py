"""The end of a view on one node: reports how far the node got, and finishes agreed work before the next view begins."""

from __future__ import annotations

import time

from ....proto import control_pb2
from ....proto.connections.patience import Watch
from ...state.stage_state import StageState
from ..following.standby import Follower
from ..holdings import Holdings
from ..steps.view_training import ViewTraining
from .handover import must_say, unsent

CATCH_UP_SECONDS = 60.0
"""After so many seconds in which no byte arrives, the node gives up the last rounds."""


def how_far(holdings: Holdings, next_view: int) -> control_pb2.Flushed:
    """What this node answers to a flush: its last step and rounds, what it holds, and what it has not sent."""
    context, rests = holdings.context, holdings.resources.rests
    answer = control_pb2.Flushed(view=next_view, step=holdings.begun_at)
    if holdings.previous is not None:
        _of_the_training(holdings.previous, answer)
    if holdings.follower is not None and holdings.state is not None and holdings.state.gradient:
        answer.step, answer.norm = holdings.follower.step, holdings.follower.norm
    for step, kept_in in rests.held() if rests is not None else ():
        answer.kept.append(control_pb2.Kept(step=step, view=kept_in))
    held = holdings.held
    answer.layers.extend(sorted({layer for state in held for layer in state.layers}))
    if holdings.previous is not None and must_say(holdings.previous.view):
        layers = list(answer.layers)
        answer.unsent[:], answer.moved = unsent(holdings.previous.view, layers, context.definition)
    if held:
        for name, section in held[0].sections.items():
            answer.sections.append(control_pb2.SectionState(section=name, round=section.round, chain=section.chain))
    return answer


def _of_the_training(previous: ViewTraining, answer: control_pb2.Flushed) -> None:
    """How far this node got in the view that ends."""
    answer.ready_step = previous.view.ready_step
    answer.norm = previous.view.committed_norm
    answer.save = previous.milestones.save
    pending = previous.report.pending()
    if pending is not None:
        answer.pending.CopyFrom(pending)


def catch_up(holdings: Holdings, view: control_pb2.View) -> StageState | None:
    """Finish what the old view agreed on: the committed step, and the rounds that some member has applied.

    Returns the state of the place that this node followed as a spare, if it could not follow it to the end."""
    context = holdings.context
    targets = {state.section: state.round for state in view.sections}
    watch = Watch("the last rounds", time.monotonic(), CATCH_UP_SECONDS, context.wire.arrived)
    if holdings.follower is not None:
        return _follow_to_the_end(holdings, holdings.follower, view.step, targets, watch)
    if holdings.previous is None:
        return None
    mode = holdings.previous.mode
    while not mode.catch_up(view.step, view.norm, targets):
        watch = watch.at(context.wire.arrived, time.monotonic())
        if holdings.previous.view.gradient or watch.gives_up(time.monotonic()):
            context.warn(context.name, "results of the last round were not to be had: takes a peer's state")
            holdings.drop_states()
            return None
        context.pump(0.1)
    mode.end()
    return None


def _follow_to_the_end(
    holdings: Holdings, follower: Follower, step: int, targets: dict[str, int], watch: Watch
) -> StageState | None:
    """Apply the last rounds of the view that this node followed as a spare. Returns its state if that fails."""
    context = holdings.context
    follower.flushed(context.wire.members)
    while not follower.reached(step, targets):
        follower.work()
        watch = watch.at(context.wire.arrived, time.monotonic())
        if follower.failed or watch.gives_up(time.monotonic()):
            context.warn(context.name, "the last rounds were not to be had: takes a peer's state")
            holdings.state = holdings.kept = holdings.follower = None
            return follower.state
        context.pump(0.02)
    if follower.whole:
        follower.state.adopt()
        holdings.state = follower.state
    return None


def compare_histories(holdings: Holdings, view: control_pb2.View) -> None:
    """Drop the state if its chain differs from that of the group's majority, whose state is then fetched."""
    chains = {state.section: (state.round, state.chain) for state in view.sections if state.chain}
    for state in holdings.held:
        for name, section in state.sections.items():
            round, chain = chains.get(name, (0, 0))
            if section.round == round and section.chain != chain != 0:
                why = f"its history of {name} is not that of the group: takes a peer's state"
                holdings.context.warn(holdings.context.name, why)
                holdings.drop_states()
                return
