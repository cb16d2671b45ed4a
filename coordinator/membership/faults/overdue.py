"""How long a view change waits for a node that says that it moves: no longer than what it has to do can take.

A heartbeat's mark grows while bytes arrive or work is done, and whoever is awaited is waited for while it does
(proto/connections/patience.py). But the mark is the node's own word. What it has to fetch is known here, from the plan
and from what it held as it answered; how fast its links are was measured, also by others. So a node has ``MOVING``
times as long as that takes, or as nothing need move for, but on no link longer than one of ``LEAST_BPS`` takes. Then
it has held the others up.

Pure. The time runs by the coordinator's clock from when the flush, or the view, was sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from ..state import FLUSHING, State
from .waits import MOVING

LEAST_BPS = 1e6
"""Bits a second of a link, below which it carries no training. Whoever claims less is not waited for longer."""
FILES_BPS = 1e8
"""The coordinator's line, which all share who load a checkpoint, is taken to be no faster than this."""


def longest_s(least_s: float, size: float, bps: float) -> float:
    """Seconds after which a node that has to fetch ``size`` bytes has had long enough. ``least_s``: for which nothing
    need move. ``bps``: of its slowest link, as measured; 0: not known."""
    slow = 8.0 * size / LEAST_BPS
    measured = MOVING * 8.0 * size / bps if bps > 0 else slow
    return max(MOVING * least_s, min(slow, measured))


def to_fetch(state: State, name: str) -> tuple[float, float]:
    """Bytes that a node that is awaited has to fetch at most, and the fastest line that may be counted with."""
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
    """Which of the ``late`` nodes has had long enough, and how long that is; of several the one that needed least."""
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
