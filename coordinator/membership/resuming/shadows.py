"""Which place a spare follows, so that it can take one like it without fetching anything: pure functions of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ....scheduler.plans import Plan
from ..signals import Shadow

CATCHES_UP = "it fetches what it is to hold while the others train"


def shadows(
    plan: Plan, spares: Iterable[str], holders: Sequence[Sequence[str]], wanted: Mapping[str, tuple[int, ...]]
) -> tuple[Shadow, ...]:
    """Spread spares over the places of a plan (the stages that one node holds), those with the fewest holders first.

    holders: who has the reference of each layer; a spare that has all of a place goes on with that. wanted: the stages
    of spares that a plan to come has a place for.
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
    """The stages that ``plan`` gives a node, if somebody holds the very same layers as one place in the current one."""
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
