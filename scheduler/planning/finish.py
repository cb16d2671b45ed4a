"""From a candidate in indices to a plan in names: publishers, codecs, and a reason for every spare."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy

from ..networks.devices import Matrix
from ..networks.regions import cut_regions
from ..plans import Plan
from ..search.annealing import Searcher
from ..search.candidates import BEFORE
from ..search.shapes import candidate, needed_memory, pieces, size_text
from ..timing.candidate import Candidate
from ..timing.depth import in_flight
from ..timing.estimate import IMPOSSIBLE, Cut, Estimator
from ..timing.exchange import found_rounds
from ..timing.rounds import publisher_fractions
from ..timing.seconds import candidate_seconds
from ..timing.simulated import candidate_compute
from ..workloads.layers import beside, smaller
from .choose_codecs import choose_codecs
from .choose_updates import choose_updates, recorded

Dollars = Callable[[Candidate, float], float]
"""(candidate, seconds of its step) -> dollars for a million tokens."""
TOLD, TOLD_OF_MANY, LAST = 512, 16, 8
"""Most spares whose reason names their best place: in networks that are written out, and in larger ones. In the larger
ones only the LAST slowest pipelines are looked at."""
SIMULATED, FEW = 16, 64
"""The best places of up to SIMULATED spares are simulated where there are up to FEW devices; else they are
estimated."""


def finish(
    estimator: Estimator,
    best: Candidate,
    why: str = "",
    current: Plan | None = None,
    dollars: Dollars | None = None,
) -> Plan:
    """The plan of a candidate: names, publishers, codecs, and the reason of every spare. current: the plan in force.
    dollars: given where the objective is cost."""
    network, workload = estimator.network, estimator.workload
    rows = [tuple(network.names[device] for device in row) * best.cut.chunks for row in best.places]
    count, nodes = best.places.shape
    fractions = [publisher_fractions(network, estimator.sent, best.places[:, position]) for position in range(nodes)]
    codecs = choose_codecs(estimator, best)
    coded = Estimator(network, workload, codecs) if codecs else estimator
    updates = choose_updates(coded, best, candidate_compute(coded, best), current) if workload.update_ladder else None
    if updates is not None:
        coded = Estimator(network, replace(workload, overlap=updates.overlap, update_bits=updates.bits), codecs or None)
        codecs = {**codecs, **recorded(updates, best.cut.chunks)}
        best = replace(best, cut=Cut(coded.workload, best.cut.stages, best.cut.chunks))
    seconds = candidate_seconds(coded, best)
    if not why:
        chunks = f", {best.cut.chunks} stages a node" if best.cut.chunks > 1 else ""
        told = best.origin.removeprefix(BEFORE).removeprefix(", ")
        origin = "" if told in ("", "in the order given") else f" ({told})"
        why = (
            f"{count} pipeline{'s' * (count != 1)} of {nodes * best.cut.chunks} stage{'s' * (nodes != 1)}{chunks}"
            f"{origin}"
        )
    if updates is not None and updates.why:
        why = f"{why}; {updates.why}"
    regions = regions_of(coded, best)
    if regions:
        why = f"{why}; rounds in two levels over {len(regions)} regions"
    cut_up = pieces(estimator, best)
    if cut_up:
        small = (f"{workload.microbatch // count} in pipeline {at}" for at, count in enumerate(cut_up) if count > 1)
        why = f"{why}; microbatches of {', '.join(small)} for want of memory"
    return Plan(
        pipelines=tuple(rows),
        stages=best.cut.stages,
        microbatches=best.microbatches,
        spares=why_spare(coded, best, seconds, dollars),
        codecs=codecs,
        publishers=tuple(fractions) * best.cut.chunks if workload.pattern != "all_to_all" else (),
        schedule="interleaved" if best.cut.chunks > 1 else ("1f1b" if workload.schedule != "gpipe" else "gpipe"),
        why=why,
        pieces=cut_up,
        overlap=None if updates is None else updates.overlap,
        regions=regions,
        in_flight=in_flight(coded, best.places, best.cut, best.microbatches),
        chosen=dict(workload.chosen),
    )


def regions_of(estimator: Estimator, best: Candidate) -> tuple[tuple[str, ...], ...]:
    """The nodes of each region, where the candidate's rounds go in two levels."""
    if not found_rounds(estimator, best)[1]:
        return ()
    regions = cut_regions(estimator.regions, best.places)
    members: dict[int, list[str]] = {}
    for device in best.places.reshape(-1):
        members.setdefault(int(regions[device]), []).append(estimator.network.names[device])
    return tuple(tuple(names) for names in members.values())


def why_spare(estimator: Estimator, best: Candidate, now: float, dollars: Dollars | None = None) -> dict[str, str]:
    """For every spare: how long a step would be with it in its best place, or why it can have none.

    now: simulated seconds of a step. dollars: as in `finish`. The analytic time finds the best place. The step with the
    spare there is simulated for SIMULATED spares where there are up to FEW devices, and where the objective is cost;
    else it is the analytic value, scaled to `now`.
    """
    network = estimator.network
    count, nodes = best.places.shape
    reasons: dict[str, str] = {}
    if not best.spare:
        return reasons
    spare, need = list(best.spare), _least_memory(estimator, best)
    if network.written_out:
        searcher = Searcher(estimator, best.cut, best.places, spare)
        places, told = numpy.arange(best.places.size), TOLD
    else:
        searcher = None
        # The best place is in one of the pipelines that end last; only a few spares are looked at.
        last = numpy.argsort(-best.estimate.pipelines)[:LAST]
        places, told = (last[:, None] * nodes + numpy.arange(nodes)).reshape(-1), TOLD_OF_MANY
    for position, device in enumerate(spare[:told]):
        name = network.names[device]
        others = best.places.reshape(-1)
        if network.memory[device] < need.min():
            reasons[name] = _too_small(estimator, device, need)
            continue
        if not ((network.bandwidth[device, others] > 0) & (network.bandwidth[others, device] > 0)).any():
            reasons[name] = "it can't reach any node that trains"
            continue
        if searcher is None:
            values = _with_spare(estimator, best, places, device, need)
        else:
            spares_place = numpy.full(len(places), best.places.size + position)
            values = searcher.values_of_swaps(places, spares_place) / searcher.value
        slot = int(places[int(values.argmin())])
        swapped = best.places.copy()
        swapped.flat[slot] = device
        seconds = now * float(values.min())
        found = best
        if dollars is not None or (position < SIMULATED and len(network) <= FEW):
            swap = candidate(estimator, swapped, [], best.cut, "")
            seconds = math.inf if swap is None else candidate_seconds(estimator, swap)
            found = swap or best
        if not seconds < IMPOSSIBLE:
            reasons[name] = "its links to the nodes that train are missing"
            continue
        where = f"stage {slot % nodes} of pipeline {slot // nodes}"
        if dollars is not None and math.isclose(dollars(found, seconds), dollars(best, now), rel_tol=0.005):
            reasons[name] = (
                f"in its best place ({where}) a million tokens would be no cheaper than ${dollars(best, now):.4g}"
            )
        elif dollars is not None:
            reasons[name] = (
                f"in its best place ({where}) a million tokens would cost ${dollars(found, seconds):.4g} at "
                f"{_s(seconds)} a step, not ${dollars(best, now):.4g} at {_s(now)}"
            )
        elif seconds > now * 1.005:
            reasons[name] = f"even in its best place ({where}) a step would take {_s(seconds)}, not {_s(now)}"
        else:
            reasons[name] = (
                f"all {count} x {nodes} places are taken, and in the best of them ({where}) it is worth no more: "
                f"{_s(seconds)} a step with it, {_s(now)} without"
            )
    for device in spare[told:]:
        small = network.memory[device] < need.min()
        taken = f"all {count} x {nodes} places are taken"
        reasons[network.names[device]] = _too_small(estimator, device, need) if small else taken
    return reasons


def _too_small(estimator: Estimator, device: int, need: Matrix) -> str:
    has, least = size_text(float(estimator.network.memory[device])), size_text(float(need.min()))
    return f"it has {has} of memory: a stage of this plan needs {least}"


def _least_memory(estimator: Estimator, best: Candidate) -> Matrix:
    """float64 [nodes]: bytes that a device at each position needs at least, with the smallest microbatches."""
    least = smaller(beside(estimator.workload, len(best.places)))[-1]
    return needed_memory(least, best.cut, -(-least.microbatches // len(best.places)))


def _with_spare(estimator: Estimator, best: Candidate, places: numpy.ndarray, device: int, need: Matrix) -> Matrix:
    """float64 [k]: seconds of a step with the spare at each of k flat positions, divided by the seconds without it. In
    a group of thousands, the other members' part of a round is taken as unchanged; shares count as fractions, not as
    whole microbatches."""
    row, stage = numpy.divmod(places, best.places.shape[1])
    rows = best.places[row]
    rows[numpy.arange(len(places)), stage] = device
    estimate, workload = best.estimate, estimator.workload
    fixed, period = estimator.rows(rows, best.cut)
    sums = (estimate.fixed / estimate.period).sum(), (1.0 / estimate.period).sum()
    starts = sums[0] + fixed / period - estimate.fixed[row] / estimate.period[row]
    paces = sums[1] + 1.0 / period - 1.0 / estimate.period[row]
    compute = numpy.maximum((workload.microbatches + starts) / paces, fixed + period)
    rounds = numpy.repeat(estimate.rounds[None], len(places), axis=0)
    for at in range(best.places.shape[1]):
        mine, group = stage == at, best.places[:, at]
        one, all_of = numpy.array([[device]]), group[None, :]
        ways = estimator.sent[one, all_of].sum(), estimator.sent[all_of.T, one].sum()
        rounds[mine, at] = numpy.maximum(rounds[mine, at], 2.0 * best.cut.update[at] / len(group) * max(ways))
    waits = estimate.hiding.exposed
    now = estimator.combine((workload.microbatches + sums[0]) / sums[1], float(waits(estimate.rounds).max()))
    with_it = numpy.asarray(estimator.combine(compute, waits(rounds).max(axis=1))) / now
    result: Matrix = numpy.where(estimator.network.memory[device] < need[stage], numpy.inf, with_it)
    return result


def _s(seconds: float) -> str:
    """0.0123 s, 15 s, 3,440 s."""
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
