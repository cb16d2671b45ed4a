"""How long a view change waits for a node that reports progress: no longer than its task can take.

A heartbeat's mark grows while bytes arrive or work is done, and the others wait for a node as long as its mark grows
(proto/connections/patience.py). But a node may lie about its mark. The coordinator knows what a node has to fetch, from
the plan and from the node's answer to the flush, and how fast its links are, also from others' measurements. So a node
gets ``MOVING`` times the larger of the fetch's time and the patience, where a link counts with at least ``LEAST_BPS``.
After that it has held the others up.

Pure. The time is the coordinator's, from when it sent the flush or the view.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from ..state import FLUSHING, State
from .waits import MOVING

LEAST_BPS = 1e6
"""Least bits a second that are assumed of a link: a slower one is useless for training, and gets no more time."""
FILES_BPS = 1e8
"""Bits a second of the coordinator's line, at most, which all nodes share that load a checkpoint."""


def longest_s(least_s: float, size: float, bps: float) -> float:
    """Seconds that a node gets at most for fetching ``size`` bytes. ``least_s``: its patience, seconds for which
    nothing need move. ``bps``: bit/s of its slowest link, as measured; 0: not known."""
    slow = 8.0 * size / LEAST_BPS
    measured = MOVING * 8.0 * size / bps if bps > 0 else slow
    return max(MOVING * least_s, min(slow, measured))


def to_fetch(state: State, name: str) -> tuple[float, float]:
    """(bytes that an awaited node has to fetch at most, the fastest line in bit/s that may be assumed)."""
    node, change, rules = state.nodes[name], state.change, state.rules
    whole = sum(rules.layer_bytes)
    new = 0.0 if node.has_stepped else rules.data_bytes
    if state.phase == FLUSHING:
        return (0.0 if node.ready else whole + new), FILES_BPS
    view = state.pinned
    assert view is not None and change is not None
    if view.checkpoint >= 0:
        return whole + new, FILES_BPS
    own = view.plan.layers_of(name) if name in view.plan.nodes else frozenset[int]()
    rounds = {section.name: section.round for section in view.sections}
    flushed = change.flushed.get(name)
    level = flushed is not None and all(one.round >= rounds.get(one.name, 0) for one in flushed.sections)
    held = {layer for layer in own if level and layer < len(view.holders) and name in view.holders[layer]}
    held -= {layer for one in view.handovers if one.taker == name for layer in one.layers}
    size = sum(rules.layer_bytes[layer] for layer in own - held if layer < len(rules.layer_bytes))
    return size + new, FILES_BPS if new else math.inf


def overdue(
    state: State,
    late: Collection[str],
    least_s: Callable[[State, set[str]], float],
    slowest_bps: Callable[[str], float],
    now: float,
) -> tuple[str, float] | None:
    """(name, seconds) of a ``late`` node that has used up its time, and that time; of several, the one with the
    shortest; else None."""
    change = state.change
    assert change is not None
    waited = now - change.began
    if waited <= MOVING * min(state.rules.flush_s, state.rules.prepare_s):
        return None
    if change.needs_all or not state.rules.layer_bytes:
        return None
    found = []
    for name in sorted(late):
        size, fastest = to_fetch(state, name)
        bps = slowest_bps(name)
        longest = longest_s(least_s(state, {name}), size, min(bps, fastest) if bps > 0 else 0.0)
        if waited > longest:
            found.append((longest, name))
    if not found:
        return None
    longest, name = min(found)
    return name, longest
