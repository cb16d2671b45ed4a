"""What the membership machine records of reported steps: each node's last step, and how long a step takes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from heapq import nlargest

from . import signals as s
from .members import altered, trains
from .state import State


def waited_by(seconds: Collection[float]) -> float:
    """Seconds of a step on which patience is based. Of three or more reports the largest one is ignored: its node may
    have delayed its reports for hours."""
    longest = nlargest(2, seconds)
    return longest[1] if len(seconds) > 2 else longest[0]


def stepped(state: State, finished: Iterable[tuple[s.StepFinished, float]]) -> State:
    """The state after finished steps, each with the time of its report. A step counts with at most the seconds since
    the coordinator heard of the one before, whatever its node reports. All reports are taken together, so the state of
    a thousand nodes is copied once."""
    nodes, view = dict(state.nodes), state.view
    reported, at_last, seconds = dict(state.reported), dict(state.stepped), dict(state.seconds)
    slowest_s, counted = state.slowest_s, False
    for event, now in finished:
        node = nodes.get(event.name)
        if node is None or node.session != event.session:
            continue
        node = nodes[event.name] = altered(node, heard=max(node.heard, now), doubted=False)
        if view is None or event.view != view.number or not trains(state, event.name, view):
            continue
        counted = True
        if not node.has_stepped:
            nodes[event.name] = altered(node, has_stepped=True)
        waited = now - max(state.started, at_last.get(event.name, 0.0))
        reported[event.name] = max(event.step, reported.get(event.name, 0))
        at_last[event.name] = now
        # After an hour without a coordinator, all steps of that hour are reported at once; they were not short.
        fade = 0.9 if waited >= event.seconds / 2 else 1.0
        seconds[event.name] = max(min(event.seconds, waited), fade * seconds.get(event.name, 0.0))
        slowest_s = max(waited_by(seconds.values()), fade * slowest_s)
    if not counted:
        return replace(state, nodes=nodes)
    return replace(state, nodes=nodes, reported=reported, stepped=at_last, seconds=seconds, slowest_s=slowest_s)
