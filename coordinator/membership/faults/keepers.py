"""Keepers that do not deliver their file of the last checkpoint: another member of the group sends it next time.

The coordinator itself sees which files have arrived and how fast, so it needs no report. If the file of every stage is
late, the cause is the coordinator's own network or disk, and no node is blamed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from ....scheduler.plans import Plan
from ..rules import Rules
from ..state import State
from .overdue import FILES_BPS, longest_s


def blamed(plan: Plan, lacking: Collection[str]) -> tuple[str, ...]:
    """Keepers whose file is late and whose stage another member holds too, which then sends it."""
    keepers = [plan.keeper(stage) for stage in range(len(plan.stages))]
    if len(set(keepers)) > 1 and set(keepers) <= set(lacking):
        return ()
    spared = {keepers[stage] for stage in range(len(keepers)) if not set(plan.group(stage)) - set(lacking)}
    return tuple(sorted(set(lacking) & set(keepers) - spared))


def upload_s(rules: Rules, late: Collection[str], slowest_bps: Callable[[str], float]) -> float:
    """Seconds that the ``late`` nodes get at most for sending their files over one line that all share."""
    if not rules.layer_bytes:
        return math.inf
    known = [bps for name in late if (bps := slowest_bps(name)) > 0]
    return longest_s(rules.last_checkpoint_s, sum(rules.layer_bytes), min([*known, FILES_BPS]) if known else 0.0)


def trickles(state: State, slowest_bps: Callable[[str], float], began: float, now: float) -> str:
    """Why not to wait any longer although bytes arrive, as a sentence; empty: wait. ``began``: the time at which all
    nodes had finished."""
    longest = upload_s(state.rules, state.lacking, slowest_bps) if state.lacking else math.inf
    if now - began <= longest:
        return ""
    return f"the last checkpoint: {' and '.join(state.lacking)} had {longest:.0f} s, ten times what it takes"
