"""Checkpoints that members cannot read, and checkpoints with weights that members do not agree on: pure.

A member that cannot read a file of the checkpoint with which a view begins reports which file, and why. The coordinator
reads the files again; a checkpoint whose files changed since they were stored is set aside. If the files are intact,
one accuser, or several by one ticket, cannot discard a checkpoint: it takes two or more that are over half of a stage's
members, or of all. Otherwise the accuser has bad memory, a bad disk or bad intent, and is put out. Only one member of
a stage may have read the file for all of them, so members put out over this checkpoint still count as accusers until
a view has begun with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, replace

from ....scheduler.plans import Plan
from .. import signals as s
from ..state import State

OTHERS_S = 10.0
"""Seconds that the other members have to report that they can't read it either, after the coordinator found the files
intact."""


@dataclass(frozen=True)
class Verdict:
    """``aside``: why the checkpoint is set aside. ``wrong``: name -> why the node is put out. Both empty: reports are
    still missing."""

    aside: str = ""
    wrong: Mapping[str, str] | None = None


def cannot_read(state: State) -> set[str]:
    """The present nodes that have reported that they cannot read the newest checkpoint."""
    said = state.unreadable.items()
    return {name for name, one in said if name in state.nodes and state.nodes[name].session == one.session}


def judged(
    plan: Plan, step: int, accusers: Mapping[str, s.Unreadable], present: Set[str], spoken: Set[str], waited_s: float
) -> Verdict:
    """The verdict on a checkpoint whose files are intact at the coordinator, ``waited_s`` seconds after it checked
    them.

    ``accusers``: the nodes that can't read it, also those that have left; ``present``: the ones that have not.
    ``spoken``: the nodes that have reported that they can or can't read it.
    """
    gone = accusers.keys() - present
    for group in (*(set(plan.group(stage)) for stage in range(len(plan.stages))), set(plan.nodes)):
        here = group & present
        said = sorted(here | gone)
        voices = {accusers[name].voice or name for name in said}
        enough = len(voices) > 1 or (here == group and len(group) > 1)
        if here and enough and len(said) > len(group | gone) // 2:
            first = accusers[said[0]]
            return Verdict(aside=f"{', '.join(said)} cannot read {first.file}: {first.why}")
    here = set(plan.nodes) & present
    if not here or (set(plan.nodes) - spoken - here and waited_s < OTHERS_S):
        return Verdict()
    return Verdict(
        wrong={
            name: f"it cannot read {accusers[name].file} of the checkpoint of step {step}, which is as it was stored, "
            f"and not enough others say so ({accusers[name].why})"
            for name in sorted(here)
        }
    )


def distrust(state: State, step: int, why: str) -> tuple[State, list[s.Effect]]:
    """Members disagree on the weights of ``step`` without a majority: no checkpoint of this step or a later one may be
    restored."""
    if not 0 < step <= state.newest.step:
        return state, []
    return replace(state, aside=state.newest.step), [s.PutAside(state.newest.step, why)]


def apart(camps: Collection[Collection[str]]) -> frozenset[tuple[str, str]]:
    """Every pair of members of the two largest camps."""
    first, second = list(camps)[:2]
    return frozenset((min(one, other), max(one, other)) for one in first for other in second)
