"""The end: every node of the plan has trained its last step, and the last checkpoint is complete."""

from __future__ import annotations

from dataclasses import replace

from ....proto.connections.patience import Watch, patience
from .. import signals as s
from ..faults.keepers import blamed, trickles
from ..faults.majority import Split, split
from ..faults.unreadable import apart
from ..faults.waits import aside
from ..given import Given
from ..members import kept_apart, put
from ..resuming.last_checkpoint import NOT_DONE, Last, Unstored, last_of
from ..state import DONE, TRAINING, Result, State
from .beginning import begin, go_back


def finished(given: Given, state: State, event: s.Finished, now: float) -> Result:
    """A node has trained its last step."""
    if state.phase != TRAINING or state.view is None or event.view != state.view.number:
        return state, []
    return check_finished(given, replace(state, finished={**state.finished, event.name: event}), now)


def check_finished(given: Given, state: State, now: float) -> Result:
    """The run is done when every node of the plan has finished and the checkpoint of the last step is complete. If it
    does not arrive, another view makes it again, as often as necessary: the final weights exist only on the nodes."""
    if state.phase != TRAINING or state.view is None or not state.finished:
        return state, []
    if set(state.view.plan.nodes) - set(state.finished):
        return state, []
    found = split({name: answer.fingerprints for name, answer in state.finished.items()})
    step = max(answer.step for name, answer in state.finished.items() if name not in found.outvoted)
    everybody = tuple(sorted(state.nodes))
    if found.tie:
        return tie_at_end(state, found, step, now)
    effects: list[s.Effect] = []
    if state.newest.step < step:
        least = state.rules.last_checkpoint_s
        trips = max((given.known.round_trip_s(name) for name in state.nodes), default=0.0)
        watch = state.ended or Watch("the last checkpoint", now, patience(least, trips), state.stored, now)
        watch = watch.at(state.stored, now)
        stood, full = watch.gives_up(now) or trickles(state, given.known.slowest_bps, watch.began, now), state.unstored
        full = full if full is not None and full.step == step else None
        what = last_of(state.rules.give_up, bool(state.nodes), stood, full, now)
        reason = full.why if full is not None else stood
        lost = f"the checkpoint of step {step} did not arrive; the newest is of step {state.newest.step}"
        lost += f" ({reason})" if reason else ""
        if what is Last.GIVE_UP:
            effects.append(s.Say("warning", "", lost))
        elif (full is not None and not full.told) or (full is None and what is Last.AGAIN):
            effects.append(s.Say("warning", "", f"{lost}: {NOT_DONE}"))
        if what is Last.WAIT:
            full = None if full is None else replace(full, told=True)
            why = f"all {step} steps are trained; waiting for the last checkpoint"
            why += f": {reason}" if reason else ""
            return replace(state, ended=watch, unstored=full, why=why), effects
        if what is Last.AGAIN:
            state = replace(state, saving=True, unstored=None)
            if full is None:
                state, said = others_send(state, now)
                effects += said
            state, more = begin(state, f"{lost}; it is made again", now)
            return state, [*effects, *more]
    effects += [
        s.Say("warning", name, f"at the end {name} does not count: {why}; test its memory")
        for name, why in found.outvoted.items()
    ]
    why = f"the run is done: {step} steps"
    return replace(state, phase=DONE, why=why), [*effects, s.Finish(step, why), s.SendStop(everybody, why)]


def others_send(state: State, now: float) -> Result:
    """Keepers that did not deliver their file of the last checkpoint get no place in the view that makes it again."""
    assert state.view is not None
    effects: list[s.Effect] = []
    for name in blamed(state.view.plan, state.lacking):
        if (node := state.nodes.get(name)) is None:
            continue
        why = "set aside: its part of the last checkpoint does not come, and others have it"
        state = put(aside(state, name, now), replace(node, stuck=why))
        effects.append(s.Say("warning", name, f"{name} is {why}"))
    return replace(state, unplannable=frozenset()) if effects else state, effects


def tie_at_end(state: State, found: Split, step: int, now: float) -> Result:
    """At the end, camps of equal size hold different weights: go back to a checkpoint, as in the middle of the run.
    From the second time on the two camps are planned apart, so that the run ends."""
    clash, pairs = f"at the end, {found.tie}", apart(found.camps)
    if state.ties_at_end and pairs <= state.broken:
        everybody = tuple(sorted(state.nodes))
        state = replace(state, phase=DONE, why=clash)
        stop = s.SendStop(everybody, clash, failed=True)
        return state, [stop, s.Fail(clash, "the checkpoints before the end are good: see `farflung status`")]
    if state.ties_at_end:
        state = kept_apart(state, pairs)
        clash += " again: they are planned apart"
    return go_back(replace(state, ties_at_end=state.ties_at_end + 1), clash, step, now)


def checkpoint_complete(given: Given, state: State, event: s.CheckpointComplete, now: float) -> Result:
    """A checkpoint is complete."""
    if event.position.step < state.newest.step:
        return state, []
    state = replace(state, newest=event.position, unsent=event.unsent, saving=False)
    return check_finished(given, state, now)


def checkpoint_not_stored(given: Given, state: State, event: s.NotStored, now: float) -> Result:
    """The coordinator's disk could not store a file of a checkpoint."""
    if state.unstored is not None and state.unstored.step == event.step:
        return state, []
    return check_finished(given, replace(state, unstored=Unstored(event.step, event.why, now)), now)
