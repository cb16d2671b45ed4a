"""Which place a spare follows, so that it can take that place or an equal one without fetching anything. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ....scheduler.plans import Plan
from ..signals import Shadow

CATCHES_UP = "it fetches what it is to hold while the others train"


def shadows(
    plan: Plan, spares: Iterable[str], holders: Sequence[Sequence[str]], wanted: Mapping[str, tuple[int, ...]]
) -> tuple[Shadow, ...]:
    """Distribute spares over the places of a plan (the stages that one node holds), places with the fewest holders
    first.

    holders: for each layer, the nodes with its reference; a spare that has a whole place's layers continues to follow
    it. wanted: spare -> the stages that a coming plan gives it.
    """
    places = {plan.stages_of(name): name for name in reversed(plan.nodes)}
    count = Counter(plan.stages_of(name) for name in plan.nodes)
    found = []
    for name in sorted(spares, key=lambda one: (one not in wanted, one)):
        has = [place for place in places if _holds(plan, place, name, holders)]
        place = wanted.get(name) or min(has or places, key=lambda one: (count[one], one))
        count[place] += 1
        found.append(Shadow(name, places[place], place not in has))
    return tuple(found)


def place_to_follow(plan: Plan, current: Plan, name: str) -> tuple[int, ...] | None:
    """The stages that ``plan`` gives a node, if one place of the current plan has exactly the same layers; else
    None."""
    stages = plan.stages_of(name)
    layers = [plan.stages[stage] for stage in stages]
    for other in current.nodes:
        place = current.stages_of(other)
        if [current.stages[stage] for stage in place] == layers:
            return place
    return None


def _holds(plan: Plan, place: tuple[int, ...], name: str, holders: Sequence[Sequence[str]]) -> bool:
    layers = [layer for stage in place for layer in range(plan.stages[stage][0], plan.stages[stage][1] + 1)]
    return bool(holders) and all(name in holders[layer] for layer in layers)
