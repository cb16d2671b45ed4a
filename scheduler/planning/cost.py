"""Objective `cost`: the fewest dollars for a million tokens, at any speed or at least at a wanted one."""

from __future__ import annotations

import time
from itertools import product

import numpy

from ..errors import PlanError
from ..networks.network import Network
from ..plans import Plan
from ..search.candidates import best_candidate
from ..search.shapes import candidate, cut_for
from ..timing.candidate import Candidate
from ..timing.estimate import Estimator
from ..timing.seconds import candidate_seconds
from ..workloads.workload import Workload
from .finish import finish

MOST_GROUPS = 16
"""Most places, and most kinds of devices, for which each one is also planned alone."""


AT_FIRST_S = 0.02
"""Seconds of the first search in each part; constructions are tried whatever the time."""
MOST_PLACES = 16
"""Most places of a plan for which each place is offered to spares."""


def plan_cost(network: Network, workload: Workload, deadline: float, seed: int, speed: float | None = None) -> Plan:
    """The cheapest plan. speed: wanted tokens a second; among plans that reach it the cheapest, and if none does the
    fastest, with a sentence about it. PlanError if a device has no price."""
    free = [device.name for device in network.devices if device.price is None]
    if free:
        raise PlanError(f"the objective cost needs a price_per_hour of every device: {free[0]!r} has none")
    estimator = Estimator(network, workload)
    tokens = workload.batch * workload.tokens_per_sample
    seen: list[tuple[float, float, Candidate]] = []

    def dollars(found: Candidate) -> float:
        seconds = candidate_seconds(estimator, found)
        cost = price_of(network, found) / 3600 * seconds / tokens * 1e6
        seen.append((cost, tokens / seconds, found))
        return cost if speed is None or tokens / seconds >= speed else 1e6 * seconds

    remaining = deadline - time.monotonic()
    first = best_candidate(network, workload, deadline - remaining / 2, seed, score=dollars)
    # Fewer, cheaper devices: each part is planned as a network of its own. Every part gets a short search before any
    # gets a long one.
    cheaper_parts = parts(network)
    longer = max(remaining / 8, remaining / 2 / max(1, len(cheaper_parts)))
    for each, part in product((AT_FIRST_S, longer), cheaper_parts):
        if time.monotonic() > deadline:
            break
        inner = network.subset([network.names[device] for device in part])
        try:
            found = best_candidate(inner, workload, min(deadline, time.monotonic() + each), seed)
        except PlanError:
            continue
        places = numpy.array(part)[found.places]
        used = set(places.reshape(-1).tolist())
        spare = [device for device in range(len(network)) if device not in used]
        cut = cut_for(estimator, places, found.cut.chunks)
        whole = None if cut is None else candidate(estimator, places, spare, cut, found.origin)
        if whole is not None:
            dollars(whole)
    for _ in range(len(network)):
        # A pipeline that costs more than it gains is dropped, and cheaper spares are tried in the places.
        best = min(seen, key=_rank(speed))[2]
        cheaper = [*_without_one(estimator, best), *_with_spares(estimator, best)]
        before = len(seen)
        for option in cheaper:
            dollars(option)
        if time.monotonic() > deadline or min(range(len(seen)), key=lambda at: _rank(speed)(seen[at])) < before:
            break
    cost, reached, best = min(seen, key=_rank(speed))
    assert first is not None
    why = f"${cost:.4g} for a million tokens at {reached:.4g} tokens a second, ${price_of(network, best):.4g} an hour"
    if speed is not None and reached < speed:
        why += f"; the wanted {speed:.4g} tokens a second can't be reached, this is the fastest"
    return finish(
        estimator,
        best,
        why,
        dollars=lambda found, seconds: price_of(network, found) / 3600 * seconds / tokens * 1e6,
    )


def _rank(speed: float | None):  # type: ignore[no-untyped-def]
    """Sort key for (cost, tokens a second, candidate): reaching the wanted speed first, then dollars."""

    def key(item: tuple[float, float, Candidate]) -> tuple[float, float]:
        cost, reached, _ = item
        return (0.0, cost) if speed is None or reached >= speed else (1.0, -reached)

    return key


def prices(network: Network) -> numpy.ndarray:
    """float64 [n]: dollars an hour."""
    return numpy.array([device.price or 0.0 for device in network.devices])


def price_of(network: Network, found: Candidate) -> float:
    """Dollars an hour of the devices that train; spares cost nothing, for they can be given back."""
    return float(prices(network)[found.places.reshape(-1)].sum())


def parts(network: Network) -> list[list[int]]:
    """Device indices of the parts of a network that may be cheaper than all of it: those of one place; those of one
    kind; then, in order of flops for the dollar, the first place, the first two, and so on, likewise kinds, and
    likewise single devices in some numbers."""
    value = network.tflops / numpy.maximum(prices(network), 1e-9)
    kinds = [(device.tflops, device.memory_bytes, device.price) for device in network.devices]
    found: list[list[int]] = []
    for labels in ([device.region for device in network.devices], kinds):
        groups: dict[object, list[int]] = {}
        for device, label in enumerate(labels):
            groups.setdefault(label, []).append(device)
        together: list[int] = []
        for members in sorted(groups.values(), key=lambda members: -float(value[members].mean())):
            together = together + members
            found += [members, together] if len(groups) <= MOST_GROUPS else []
    order = numpy.argsort(-value, kind="stable").tolist()
    found += [order[:count] for count in _sizes(len(network))]
    distinct = {tuple(sorted(part)) for part in found if len(part) < len(network)}
    dear = prices(network)
    return [list(part) for part in sorted(distinct, key=lambda part: _promise(network, dear, part))]


def _promise(network: Network, dear: numpy.ndarray, part: tuple[int, ...]) -> tuple[float, int, tuple[int, ...]]:
    """Sort key of a part: the least dollars for its flops first; of equal ones, the larger part."""
    chosen = list(part)
    return float(dear[chosen].sum() / network.tflops[chosen].sum()), -len(part), part


def _sizes(count: int) -> list[int]:
    return sorted({max(1, round(count * part)) for part in (1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8)})


def _with_spares(estimator: Estimator, best: Candidate) -> list[Candidate]:
    """The candidates in which one place is given to a spare: each place, with one spare of each kind. Empty where there
    are many places or kinds."""
    devices, chunks = estimator.network.devices, best.cut.chunks
    kinds = {(devices[one].region, devices[one].tflops, devices[one].price): one for one in best.spare}
    if best.places.size > MOST_PLACES or len(kinds) > MOST_GROUPS:
        return []
    found = []
    for spare, at in product(kinds.values(), range(best.places.size)):
        places = best.places.copy()
        out = int(places.flat[at])
        places.flat[at] = spare
        cut = cut_for(estimator, places, chunks)
        left = [*(one for one in best.spare if one != spare), out]
        option = None if cut is None else candidate(estimator, places, left, cut, best.origin)
        if option is not None:
            found.append(option)
    return found


def _without_one(estimator: Estimator, best: Candidate) -> list[Candidate]:
    found = []
    if len(best.places) > 1 and estimator.workload.pipelines is None:
        for pipeline in range(min(len(best.places), 16)):
            places = numpy.delete(best.places, pipeline, axis=0)
            spare = [*best.spare, *best.places[pipeline].tolist()]
            cut = cut_for(estimator, places, best.cut.chunks)
            option = None if cut is None else candidate(estimator, places, spare, cut, best.origin)
            if option is not None:
                found.append(option)
    return found
