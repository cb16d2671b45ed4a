"""How long the others wait for nodes at which nothing moves. For nodes that report progress see overdue.py."""

from __future__ import annotations

from ....proto.connections.patience import patience
from ..faults.stuck import STEPS_OF_PATIENCE
from ..given import Given
from ..state import FLUSHING, State


def may_wait(given: Given, state: State, names: frozenset[str] | set[str], stood: float) -> bool:
    """Whether to keep waiting for these nodes, at which nothing has moved for ``stood`` seconds: yes, while a
    computation or a transfer over a slow link may still take that long."""
    least = least_wait(state, names)
    if stood <= least:
        return True
    trips = max((given.known.round_trip_s(name) for name in names), default=0.0)
    rates = [rate for name in names if (rate := given.known.rate_bps(name)) > 0]
    return stood <= patience(least, trips, min(rates, default=0.0))


def least_wait(state: State, names: frozenset[str] | set[str]) -> float:
    """Seconds that the awaited nodes may show no progress, even on a fast network."""
    rules = state.rules
    if state.phase != FLUSHING:
        return rules.prepare_s
    training = set(state.view.plan.nodes) if state.view else set()
    first = any(name in training and name not in state.stepped for name in names)  # it may be compiling
    return max(rules.first_s if first else rules.flush_s, STEPS_OF_PATIENCE * state.slowest_s)
