"""Reports of nodes that only have to be recorded."""

from __future__ import annotations

from dataclasses import replace

from .. import signals as s
from ..faults.standstill import Claim
from ..given import Given
from ..members import beaten, trains
from ..resuming.learnt import noted
from ..state import DONE, TRAINING, Result, State
from ..steps import stepped


def says_it_waits(given: Given, state: State, event: s.Waits, now: float) -> Result:
    """A node has waited long, and names the nodes that it waits for."""
    view = state.view
    if state.phase != TRAINING or view is None or event.view != view.number or not trains(state, event.name, view):
        return state, []
    claim = Claim(now, frozenset(event.peers), event.moves)
    return replace(state, waits={**state.waits, event.name: claim}), []


def over(given: Given, state: State, event: s.Over, now: float) -> Result:
    """The run is over, or this coordinator's part in it."""
    return replace(state, phase=DONE, why=event.why), []


def beats(given: Given, state: State, event: s.Beats, now: float) -> Result:
    """Heartbeats, of many nodes together."""
    return beaten(state, event, now), []


def beat(given: Given, state: State, event: s.Heard, now: float) -> Result:
    """One heartbeat."""
    return beaten(state, s.Beats((event,)), now), []


def step_finished(given: Given, state: State, event: s.StepFinished, now: float) -> Result:
    """A node has finished a step."""
    return stepped(state, ((event, now),)), []


def steps_finished(given: Given, state: State, event: s.Steps, now: float) -> Result:
    """Reports of steps of many nodes together."""
    return stepped(state, event.finished), []


def keeps(given: Given, state: State, event: s.Kept, now: float) -> Result:
    """A node keeps something on its disk beside a checkpoint."""
    said = (event.step, event.view, event.name, event.norm, event.moved)
    return replace(state, kept=noted(state.kept, *said)), []
