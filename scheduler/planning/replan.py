"""Planning near a plan in force: a node moves only if what it gains over the expected stay pays for the move.

The plan in force is kept unless another one is better by more than measurements vary. After a join, a leave or a
slowdown the candidates are the plan with its holes filled by spares, without the pipelines that have holes, with one
pipeline more, and a whole new search; each is charged the seconds in which moved nodes fetch their stage's state.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy

from ..errors import PlanError
from ..networks.network import NOISE, Network, components
from ..plans import Plan
from ..search.annealing import Found
from ..search.candidates import BEFORE, best_candidate
from ..search.shapes import candidate, cut_for
from ..timing.candidate import Candidate, Places
from ..timing.estimate import IMPOSSIBLE, Cut, Estimator
from ..timing.seconds import candidate_seconds
from ..workloads.workload import Workload
from .choose_codecs import SLOWER, choose_codecs
from .finish import finish


@dataclass(frozen=True)
class Move:
    """The cost of changing to another plan. seconds: of the longest fetch; nodes: the ones that must fetch state."""

    seconds: float
    nodes: tuple[str, ...]


def replan(
    network: Network,
    workload: Workload,
    current: Plan,
    deadline: float,
    seed: int,
    stay: float,
    begin: Found | None = None,
) -> Plan:
    """The plan to use from now on: `current` itself (the same object) where no other plan is enough better.

    stay: seconds for which the present membership is expected to last. begin: a placement for a search to begin with.
    """
    estimator = Estimator(network, workload)
    kept = as_candidate(estimator, current)
    if kept is not None and set(current.spares) == set(network.names) - set(current.nodes):
        now = candidate_seconds(estimator, kept, bool(current.regions))
        near = _nearest(estimator, current, deadline)
        found = _best(estimator, [*near, _searched(network, workload, deadline, seed, begin)], current, stay)
        if found is None or found[0] * (1 + NOISE) > now or current.same_placement(finish(estimator, found[1])):
            return _kept(estimator, kept, current)
        gained = stay * (1 - found[0] / now)
        move = move_cost(estimator, current, found[1])
        if gained < move.seconds:
            return _kept(estimator, kept, current)
        change = _nodes(move) if move.nodes else "pipelines get other shares of the batch"
        why = f"{change}: steps should be about {now / found[0]:.2g} times as fast"
        return finish(estimator, found[1], why, current)
    near = _nearest(estimator, current, deadline)
    found = _best(estimator, near, current, stay)
    # A whole new search only where no near plan is left, or a near one wastes much of what has joined.
    used = 0 if found is None else found[1].places.size
    if found is None or used < 0.75 * min(len(network), workload.microbatches * len(workload.layers)):
        try:
            fresh = best_candidate(network, workload, deadline, seed, near=begin)
        except PlanError:
            if found is None:
                raise
        else:
            found = _best(estimator, [*near, fresh], current, stay)
    if found is None:
        raise PlanError("no plan near the one in force and no new one can be made of the joined devices")
    _, best = found
    move = move_cost(estimator, current, best)
    count, nodes = best.places.shape
    shape = f"{count} pipeline{'s' * (count != 1)} of {nodes} node{'s' * (nodes != 1)}"
    why = f"{_difference(network, current)}: {shape}{f', {_nodes(move)}' if move.nodes else ''}"
    return finish(estimator, best, why, current)


def _kept(estimator: Estimator, kept: Candidate, current: Plan) -> Plan:
    """The plan in force: the same object, unless the codecs of links or rounds, the overlap, or the job's open keys
    would now have other values."""
    if current.chosen != (chosen := dict(estimator.workload.chosen)):
        current = replace(current, chosen=chosen, why="the placement in force")
    links = links_now(estimator, kept, current)
    if not estimator.workload.update_ladder:
        if current.overlap is None and links == _links(current):
            return current
        return replace(current, overlap=None, codecs=links, why=_why_links(current, links))
    made = finish(estimator, kept, "the plan in force", current)
    updates = _updates(made)
    if (made.overlap, {**links, **updates}) == (current.overlap, current.codecs):
        return current
    why = made.why if updates != _updates(current) else _why_links(current, links)
    return replace(current, overlap=made.overlap, codecs={**links, **updates}, why=why)


def links_now(estimator: Estimator, kept: Candidate, current: Plan) -> dict[str, str]:
    """The codecs that links between stages should have in the plan in force: its own, unless other codecs shorten a
    step by more than measurements vary, or are all less lossy and make it no longer."""
    network, workload = estimator.network, estimator.workload
    if not workload.codecs:
        return {}
    names = [choice.name for choice in workload.codecs]
    held, wanted = _links(current), choose_codecs(estimator, kept)
    if held == wanted or not all(name in names for name in held.values()) or set(held) != set(wanted):
        return wanted
    now, then = (
        Estimator(network, workload, codecs).step(kept.places, kept.cut, kept.microbatches).seconds
        for codecs in (held, wanted)
    )
    gentler = all(names.index(wanted[link]) <= names.index(held[link]) for link in held)
    return wanted if now > then * (1 + NOISE) or (gentler and then <= now * (1 + SLOWER)) else held


def _links(plan: Plan) -> dict[str, str]:
    """The codecs of links between stages in a plan."""
    return {link: codec for link, codec in plan.codecs.items() if not link.startswith("updates")}


def _updates(plan: Plan) -> dict[str, str]:
    """The codecs of rounds in a plan."""
    return {link: codec for link, codec in plan.codecs.items() if link.startswith("updates")}


def _why_links(current: Plan, links: dict[str, str]) -> str:
    before = _links(current)
    new = [f"{link} sends {codec}" for link, codec in sorted(links.items()) if before.get(link) != codec]
    if not new:
        return current.why
    return "; ".join(new[:3]) + (f"; and {len(new) - 3} links more" if len(new) > 3 else "")


def placement_of(network: Network, plan: Plan | None) -> Found | None:
    """A plan's placement for a search to begin with; None where the network lacks one of its nodes."""
    if plan is None or any(node not in network.index for node in plan.nodes):
        return None
    nodes = len(set(plan.pipelines[0]))
    places = numpy.array([[network.index[node] for node in row[:nodes]] for row in plan.pipelines])
    used = set(plan.nodes)
    return Found(places, [at for name, at in network.index.items() if name not in used], numpy.inf, BEFORE)


def as_candidate(estimator: Estimator, current: Plan) -> Candidate | None:
    """The plan in force as a candidate; None unless all its nodes are there and it is still what the job asks for."""
    network, workload = estimator.network, estimator.workload
    if any(node not in network.index for node in current.nodes) or current.layers != len(workload.layers):
        return None
    if sum(current.microbatches) != workload.microbatches:
        return None
    if workload.stages not in (None, len(current.stages)) or workload.pipelines not in (None, len(current.pipelines)):
        return None
    nodes = len(set(current.pipelines[0]))
    places = numpy.array([[network.index[node] for node in row[:nodes]] for row in current.pipelines])
    cut = Cut(workload, current.stages, len(current.stages) // nodes)
    largest = components(network)[0]
    if not set(places.reshape(-1).tolist()) <= set(largest):
        return None
    estimate = estimator.step(places, cut, current.microbatches)
    if not estimate.seconds < IMPOSSIBLE:  # a link that it needs is gone
        return None
    spare = tuple(index for name, index in network.index.items() if name not in current.nodes)
    return Candidate(places, spare, cut, current.microbatches, estimate, "the plan in force", current.in_flight)


def move_cost(estimator: Estimator, current: Plan, best: Candidate) -> Move:
    """The cost of going from the plan in force to the candidate: each moved node fetches its state over its links."""
    network, workload = estimator.network, estimator.workload
    cut = best.cut
    held = {node: current.layers_of(node) for node in current.nodes if node in network.index}
    moved: list[str] = []
    longest = 0.0
    for row in best.places:
        for position, device in enumerate(row):
            name = network.names[int(device)]
            needed: set[int] = set()
            for stage in range(position, len(cut.stages), cut.nodes):
                first, last = cut.stages[stage]
                needed |= set(range(first, last + 1))
            missing = needed - held.get(name, frozenset())
            if not missing:
                continue
            moved.append(name)
            took = 0.0
            for layer in missing:
                bits = workload.layers[layer].parameters * workload.optimizer_bytes * 8
                sources = [network.index[node] for node, layers in held.items() if layer in layers and node != name]
                rate = max((float(network.rate[source, device]) for source in sources), default=0.0)
                took += bits / rate if rate > 0 else 60.0
            longest = max(longest, took)
    return Move(longest, tuple(sorted(set(moved))))


def _best(
    estimator: Estimator, found: list[Candidate | None], current: Plan, stay: float
) -> tuple[float, Candidate] | None:
    """(seconds of a step, candidate) of the candidate that does most steps within the stay, after its moves."""
    rated: list[tuple[float, int, float, Candidate]] = []
    for option in found:
        if option is None:
            continue
        seconds = candidate_seconds(estimator, option)
        move = move_cost(estimator, current, option)
        # The move's seconds are spread over the stay's steps. Of options within 2 %, the one that moves fewest nodes
        # wins.
        effective = seconds * stay / max(stay - move.seconds, 1e-3 * stay)
        rated.append((effective, len(move.nodes), seconds, option))
    if not rated:
        return None
    limit = min(rate for rate, _, _, _ in rated) * 1.02
    _, _, seconds, best = min((item for item in rated if item[0] <= limit), key=lambda item: (item[1], item[0]))
    return seconds, best


def _searched(
    network: Network, workload: Workload, deadline: float, seed: int, begin: Found | None
) -> Candidate | None:
    if len(network) > 64 and time.monotonic() > deadline:
        return None
    return best_candidate(network, workload, deadline, seed, near=begin)


def _nearest(estimator: Estimator, current: Plan, deadline: float) -> list[Candidate | None]:
    """Plans that keep almost every node where it is."""
    network, workload = estimator.network, estimator.workload
    if current.layers != len(workload.layers) or workload.stages not in (None, len(current.stages)):
        return []
    nodes = len(set(current.pipelines[0]))
    chunks = len(current.stages) // nodes
    rows = [[network.index.get(node, -1) for node in row[:nodes]] for row in current.pipelines]
    used = {device for row in rows for device in row}
    free = sorted(
        (device for device in range(len(network)) if device not in used),
        key=lambda device: (-float(network.tflops[device]), device),
    )
    options: list[list[list[int]]] = []
    whole = [row for row in rows if -1 not in row]
    broken = [row for row in rows if -1 in row]
    if broken:
        # Holes filled from the spares, and then from the other broken pipelines.
        pool = [device for row in broken for device in row if device >= 0]
        options.append(whole + _filled(estimator, broken, list(free), current))
        options.append(whole)
        if len(broken) > 1 or free:
            options.append(whole + _filled(estimator, broken, free + pool, current))
    else:
        options.append(rows)
    base = options[0]
    taken = {device for row in base for device in row}
    left = [device for device in free if device not in taken]
    if workload.pipelines is None or len(base) < workload.pipelines:
        grown = list(base)
        while len(left) >= nodes and len(grown) < (workload.pipelines or workload.microbatches):
            grown = [*grown, left[:nodes]]
            left = left[nodes:]
            options.append(grown)
    result: list[Candidate | None] = []
    for option in options:
        if not option or any(-1 in row for row in option):
            continue
        if workload.pipelines not in (None, len(option)) or len(option) > workload.microbatches:
            continue
        places = numpy.array(option)
        taken = {device for row in option for device in row}
        spare = [device for device in range(len(network)) if device not in taken]
        result += _cuts(estimator, places, spare, current, chunks)
    return result


def _cuts(estimator: Estimator, places: Places, spare: list[int], current: Plan, chunks: int) -> list[Candidate | None]:
    """The placement with the layer ranges in force, and with those that fit its devices best."""
    fresh = cut_for(estimator, places, chunks)
    if fresh is None:
        return []
    result = [candidate(estimator, places, spare, fresh, "near the plan in force")]
    if fresh.stages != current.stages and numpy.isinf(estimator.network.memory).all():
        old = Cut(estimator.workload, current.stages, chunks)
        result.append(candidate(estimator, places, spare, old, "near the plan in force"))
    return result


def _filled(estimator: Estimator, broken: list[list[int]], pool: list[int], current: Plan) -> list[list[int]]:
    """Broken pipelines with their holes filled from the pool, each hole by the device that makes it fastest."""
    filled = [list(row) for row in broken]
    chunks = len(current.stages) // len(broken[0])
    cut = Cut(estimator.workload, current.stages, chunks)
    result = []
    for row in filled:
        own = [device for device in row if device >= 0]
        choices = [device for device in pool if device not in own]
        for position in [at for at, device in enumerate(row) if device < 0]:
            if not choices:
                break
            trial = numpy.array([[*row[:position], device, *row[position + 1 :]] for device in choices])
            trial[trial < 0] = choices[0]
            _, period = estimator.rows(trial, cut)
            best = int(period.argmin())
            row[position] = choices.pop(best)
        if -1 not in row:
            result.append(row)
            pool = [device for device in pool if device not in row]
    return result


def _difference(network: Network, current: Plan) -> str:
    before = set(current.nodes) | set(current.spares)
    now = set(network.names)
    left, joined = sorted(before - now), sorted(now - before)
    parts = []
    if left:
        parts.append(f"{', '.join(left[:3])}{' and others' if len(left) > 3 else ''} left")
    if joined:
        parts.append(f"{', '.join(joined[:3])}{' and others' if len(joined) > 3 else ''} joined")
    return " and ".join(parts) or "the job changed"


def _nodes(move: Move) -> str:
    count = len(move.nodes)
    return "nobody moves" if count == 0 else f"{count} node{'s' * (count != 1)} move{'s' * (count == 1)}"
