"""Nodes that join and leave, or pause and return, so often that the others can't work.

Each time costs all nodes a view change. A node that did so more than ``MOST`` times within ``WITHIN_S`` gets no place
for some time, in its next sessions too, like a node that held the others up (waits.py). A machine that is restarted by
hand, or reconnects over a bad line with the pauses of node/rejoin.py, stays below this limit.

A join also delays the first view until no node has joined for a moment. A series of joins delays it at most ``ROWS``
times as long.
"""

from __future__ import annotations

from dataclasses import replace

from ..state import State
from .waits import aside

MOST, WITHIN_S = 20, 600.0
ROWS = 10


def noted(state: State, name: str, now: float) -> tuple[State, str]:
    """Record that a node has joined, or paused by itself while it trained. Returns (state, why it is set aside, or
    "")."""
    known = dict(state.comings)  # ordered by each node's last time
    times = (*(at for at in known.pop(name, ()) if now - at < WITHIN_S), now)
    while known and now - known[first := next(iter(known))][-1] >= WITHIN_S:
        del known[first]
    if len(times) <= MOST:
        return replace(state, comings={**known, name: times}), ""
    state = replace(aside(state, name, now), comings=known)
    return state, f"set aside: it joined or paused {len(times)} times in {now - times[0]:.0f} s, each time for all"


def joined_at(state: State, now: float) -> State:
    """The state with the time of a join, and of the first join of a series."""
    in_row = now - state.last_join < state.rules.settle_s
    return replace(state, last_join=now, row_since=state.row_since if in_row else now)


def quiet(state: State, seconds: float, now: float) -> bool:
    """Whether no node has joined for ``seconds``, or a series of joins has lasted so long that waiting is useless."""
    return now - state.last_join >= seconds or now - state.row_since >= ROWS * seconds
