"""predict(): a plan's step, timed by the simulation of its action lists, and where the time goes, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy

from .depth import Depths, in_flight
from .devices import VIEW_CHANGE_S, Matrix
from .errors import PlanError
from .estimate import Cut, Estimator
from .explain import bottleneck_of
from .helps import best_help
from .jobs import workload_of
from .layers import shares
from .lines import busiest_line, traffic
from .network import NOISE, Network
from .plans import Plan
from .regions import MOST_TOGETHER, cut_regions
from .rounds import publisher_fractions, round_seconds, site_seconds
from .shapes import Candidate
from .simulate import positions, simulate
from .tied import stage_bits, tied_group, tied_seconds
from .transport import OVERLAPPED, Trace, Transport
from .workload import Workload

FEW_LINES = 1024
"""Devices up to which all that a line carries is added up."""
SIMULATED_ROWS = 32
"""Pipelines of a candidate that a search simulates."""
FEW_HELPS = 128
"""Devices that train up to which each change that might help is simulated; of more it is estimated."""
EVENTS_AT_ONCE = 60_000
"""Actions that one simulation runs; a longer step is extended by its steady period."""


@dataclass(frozen=True)
class Prediction:
    """What a step of a plan takes and why.

    step_s: seconds. bubble: the part of the devices' time in a step in which they don't compute. compute_s: seconds
    of the slowest pipeline's forwards and backwards, round_s: of the slowest group's round. bottleneck: what sets the
    pace, in words. helps: what would help most, with the number. cost_per_million_tokens: dollars, where every used
    device has a price. seconds: part of a step -> seconds.
    """

    step_s: float
    tokens_per_second: float
    bubble: float
    compute_s: float
    round_s: float
    bottleneck: str
    helps: str
    cost_per_million_tokens: float | None
    seconds: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """The keys of `farflung plan --json`'s `predicted`."""
        result: dict[str, Any] = {
            "step_s": round(self.step_s, 6),
            "tokens_per_second": round(self.tokens_per_second, 3),
            "bubble": round(self.bubble, 4),
            "bottleneck": self.bottleneck,
            "helps": self.helps,
            "seconds": {name: round(value, 6) for name, value in self.seconds.items()},
        }
        if self.cost_per_million_tokens is not None:
            result["cost_per_million_tokens"] = round(self.cost_per_million_tokens, 6)
        return result


def predict(
    network: Network, job: Workload | Mapping[str, Any], plan: Plan, *, transport: Transport = OVERLAPPED
) -> Prediction:
    """Times a plan, the scheduler's or one of your own. PlanError if it does not fit the network or the job."""
    workload = as_chosen(job if isinstance(job, Workload) else workload_of(job), plan)
    places, cut = indices(network, workload, plan)
    estimator = Estimator(network, replace(workload, schedule=plan.schedule), plan.codecs)
    _, compute = run(estimator, places, cut, plan.microbatches, plan.schedule, transport, depths=plan.in_flight)
    rounds = plan_rounds(estimator, places, cut, plan)
    seconds = float(estimator.combine(compute, float(rounds.max())))
    alone = seconds
    split = bool(plan.regions) or workload.pattern == "two_level"
    shared, line = together(estimator, places, cut, plan.microbatches, split, plan.publishers)
    used = places.reshape(-1)
    # Compute of the devices that train, as a part of their time; the trace may be of fewer microbatches than a step.
    full = device_work(estimator, places, cut, plan.microbatches)
    bubble = 1.0 - float(full.sum()) / (len(used) * seconds)
    tokens = workload.batch * workload.tokens_per_sample
    lost = lost_part(network, used)
    prices = [network.devices[int(device)].price for device in used]
    cost = None
    if all(price is not None for price in prices):
        cost = sum(price or 0.0 for price in prices) / 3600 * seconds / (1 - lost) / tokens * 1e6
    bottleneck, pair = bottleneck_of(estimator, places, cut, plan.microbatches, rounds, compute, plan.in_flight)

    def timed(other: Network, changed: Workload) -> float:
        estimate = Estimator(other, replace(changed, schedule=plan.schedule), plan.codecs)
        same = Cut(changed, plan.stages, cut.chunks)
        if len(used) > FEW_HELPS:
            took = estimate.step(places, same, plan.microbatches).seconds
            return took / estimator.step(places, cut, plan.microbatches).seconds * alone
        _, ends = run(estimate, places, same, plan.microbatches, plan.schedule, transport, depths=plan.in_flight)
        exchange = float(plan_rounds(estimate, places, same, plan).max())
        busy, _ = together(estimate, places, same, plan.microbatches, split, plan.publishers)
        return max(busy, float(estimate.combine(ends, exchange)))

    helps = best_help(network, workload, pair, places.shape[1], len(places), max(alone, shared), timed)
    if shared > seconds:
        seconds = shared
        bottleneck = f"{line}: activations and rounds together take {shared:.3g} s of it"
        if helps.startswith("no single"):
            helps = f"fewer bits, or more of {line}: with lines of their own both would take {alone:.3g} s a step"
        bubble = 1.0 - float(full.sum()) / (len(used) * seconds)
    parts = {
        "compute of the busiest device": float(full.max()),
        "slowest pipeline": compute,
        "slowest round": float(rounds.max()),
        "waiting for rounds": max(0.0, seconds - compute),
    }
    if lost:
        parts["view changes, of a step's share"] = seconds * lost / (1 - lost)
    return Prediction(
        step_s=seconds,
        tokens_per_second=tokens / seconds * (1 - lost),
        bubble=max(0.0, bubble),
        compute_s=compute,
        round_s=float(rounds.max()),
        bottleneck=bottleneck,
        helps=helps,
        cost_per_million_tokens=cost,
        seconds=parts,
    )


def together(
    estimator: Estimator,
    places: numpy.ndarray,
    cut: Cut,
    microbatches: Sequence[int],
    split: bool,
    publishers: Sequence[Sequence[float]] = (),
) -> tuple[float, str]:
    """(seconds, words) of the busiest line where rounds overlap with steps; 0 seconds where they take turns, and where
    rounds go in two levels (``split``), which are made to spare the lines."""
    if not _share_lines(estimator, places, cut, split):
        return 0.0, ""
    pattern = estimator.workload.pattern
    return busiest_line(estimator, traffic(estimator, places, cut, microbatches, pattern, publishers))


def _share_lines(estimator: Estimator, places: numpy.ndarray, cut: Cut, split: bool) -> bool:
    """Whether activations and rounds use lines at the same time, as far as that is counted."""
    rounds = len(places) > 1 or cut.tied > 0
    return bool(estimator.workload.overlap) and rounds and not split and len(estimator.network) <= FEW_LINES


def as_chosen(workload: Workload, plan: Plan) -> Workload:
    """The workload with the overlap and the codecs of updates that the plan chose, if it chose any."""
    bits = dict(workload.update_ladder)
    found = [plan.update_codec(place) or "" for place in range(len(set(plan.pipelines[0])))]
    if plan.overlap is None or any(name not in bits for name in found):
        return workload
    return replace(workload, overlap=plan.overlap, update_bits=tuple(bits[name] for name in found))


def indices(network: Network, workload: Workload, plan: Plan) -> tuple[numpy.ndarray, Cut]:
    """A plan's places (int [d, nodes]) and cut. PlanError names what does not fit."""
    missing = [node for node in plan.nodes if node not in network.index]
    if missing:
        raise PlanError(f"the plan uses {missing[0]!r}, which the network does not have")
    if plan.layers != len(workload.layers):
        raise PlanError(f"the plan has {plan.layers} layers: the model has {len(workload.layers)}")
    if sum(plan.microbatches) != workload.microbatches:
        raise PlanError(
            f"the plan's shares add up to {sum(plan.microbatches)} microbatches, not {workload.microbatches}"
        )
    rows = [[network.index[node] for node in pipeline] for pipeline in plan.pipelines]
    nodes = positions(rows[0])
    if any(positions(row) != nodes for row in rows):
        raise PlanError("all pipelines of a plan must have the same number of nodes")
    return numpy.array([row[:nodes] for row in rows]), Cut(workload, plan.stages, len(plan.stages) // nodes)


def plan_rounds(estimator: Estimator, places: numpy.ndarray, cut: Cut, plan: Plan) -> Matrix:
    """float64 [nodes]: seconds of each position's round, with the plan's own publishers and levels."""
    pattern = estimator.workload.pattern
    if pattern == "two_level" or plan.regions:
        pattern = "two_level" if plan.regions else "publishers"
    return _rounds(estimator, places, cut, pattern, plan.publishers)


def _rounds(
    estimator: Estimator, places: numpy.ndarray, cut: Cut, pattern: str, publishers: Sequence[Sequence[float]] = ()
) -> Matrix:
    network, sent, regions = estimator.network, estimator.sent, cut_regions(estimator.regions, places)
    bits = stage_bits(cut)
    result = []
    for position in range(places.shape[1]):
        own = numpy.array(publishers[position]) if publishers else None
        result.append(round_seconds(network, sent, places[:, position], float(bits[position]), pattern, own, regions))
    shared = site_seconds(network, places, bits, pattern, regions)
    seconds: Matrix = numpy.array(result)
    if cut.tied:
        # The nodes of both positions send it over the lines that their stages' rounds use.
        seconds[[0, -1]] += tied_seconds(network, sent, places, cut, pattern, regions)
        both = tied_group(places)[:, None]
        shared += site_seconds(network, both, numpy.array([cut.tied]), pattern, regions)
    seconds = numpy.maximum(seconds, shared)
    return seconds


def found_rounds(estimator: Estimator, found: Candidate, levels: bool | None = None) -> tuple[float, bool]:
    """Seconds of a candidate's slowest round, and whether it goes in two levels; see rounds_of. Worked out once."""
    key = (found.places.shape, found.places.tobytes(), found.cut.stages, levels)
    if key not in estimator.timed_rounds:
        seconds, split = rounds_of(estimator, found, levels)
        estimator.timed_rounds[key] = (float(seconds.max()), split)
    return estimator.timed_rounds[key]


def rounds_of(estimator: Estimator, found: Candidate, levels: bool | None = None) -> tuple[Matrix, bool]:
    """Seconds of the round at each position, float64 [nodes], with publishers by bandwidth, and whether rounds go in
    two levels.

    With pattern ``auto`` it does where that is faster by more than measurements vary (a sum that is encoded once more
    loses once more), and in groups of more than MOST_TOGETHER. ``levels``: whether it does, where a plan has decided
    that.
    """
    groups = [found.places[:, position] for position in range(found.places.shape[1])]
    publishers = [publisher_fractions(estimator.network, estimator.sent, group) for group in groups]

    def seconds(pattern: str) -> Matrix:
        return _rounds(estimator, found.places, found.cut, pattern, publishers)

    wished = estimator.workload.pattern
    regions = cut_regions(estimator.regions, found.places)
    possible = any(_has_levels(regions[group]) for group in groups)
    if not possible or levels is False or wished not in ("auto", "two_level"):
        return seconds("publishers" if wished == "two_level" else wished), False
    split = seconds("two_level")
    if wished == "two_level" or levels or len(found.places) > MOST_TOGETHER:
        return split, True
    usual = seconds(wished)
    return (split, True) if split.max() * (1 + NOISE) < usual.max() else (usual, False)


def _has_levels(regions: numpy.ndarray) -> bool:
    """Whether the members of a group, by their regions' numbers, are in several regions and not all alone there."""
    return 1 < len(numpy.unique(regions)) < len(regions)


def device_work(estimator: Estimator, places: numpy.ndarray, cut: Cut, microbatches: tuple[int, ...]) -> Matrix:
    """float64 [d, nodes]: seconds that each device computes in a step."""
    workload = estimator.workload
    work = cut.work.reshape(cut.chunks, cut.nodes).sum(axis=0)
    once: Matrix = work[None, :] / estimator.speed[places] * (1 + workload.backward_ratio)
    total: Matrix = once * numpy.array(microbatches)[:, None]
    return total


def run(
    estimator: Estimator,
    places: numpy.ndarray,
    cut: Cut,
    microbatches: tuple[int, ...],
    schedule: str,
    transport: Transport = OVERLAPPED,
    record: bool = False,
    whole: bool = False,
    depths: Depths | None = None,
) -> tuple[Trace, float]:
    """(trace, seconds of the slowest pipeline); see pipeline_ends."""
    trace, ends = pipeline_ends(estimator, places, cut, microbatches, schedule, transport, record, whole, depths)
    return trace, float(ends.max())


def pipeline_ends(
    estimator: Estimator,
    places: numpy.ndarray,
    cut: Cut,
    microbatches: tuple[int, ...],
    schedule: str,
    transport: Transport = OVERLAPPED,
    record: bool = False,
    whole: bool = False,
    depths: Depths | None = None,
) -> tuple[Trace, Matrix]:
    """(trace, float64 [d]: when each pipeline ends). A long step is simulated for some microbatches of each pipeline
    and extended by its period.

    whole: simulate every microbatch whatever it takes. depths: of a plan; None: those that a plan would have.
    """
    rows = numpy.tile(places, (1, cut.chunks))
    workload = estimator.workload
    forward = cut.work[None, :] / estimator.speed[rows]
    backward = forward * workload.backward_ratio
    out, back = rows[:, :-1], rows[:, 1:]
    ahead = (cut.elements * estimator.forward_bits[out, back]).tolist()
    astern = (cut.elements * estimator.backward_bits[out, back]).tolist()
    if estimator.codes and rows.shape[1] > 1:
        coding = cut.elements * estimator.coding[out, back] / 2
        for part in (forward, backward):
            part[:, :-1] += coding
            part[:, 1:] += coding

    if depths is None:
        depths = in_flight(estimator, places, cut, microbatches) if schedule == "1f1b" else ()

    def simulated(share: list[int], recording: bool) -> Trace:
        return simulate(
            estimator.network,
            rows.tolist(),
            forward,
            backward,
            ahead,
            astern,
            share,
            schedule,
            transport,
            recording,
            depths,
        )

    actions = 2 * rows.shape[1] * sum(microbatches)
    most = max(microbatches)
    turn = min(max((max(row) for row in depths), default=rows.shape[1]), 4 * rows.shape[1])
    depth = 3 * turn
    if whole or most <= depth or (actions <= EVENTS_AT_ONCE and (actions <= 4_000 or schedule == "gpipe")):
        trace = simulated(list(microbatches), record)
        return trace, numpy.array([float(trace.done[row].max()) for row in places])
    # The first `depth` microbatches of each pipeline reach its steady state; the rest repeats its period.
    short = [min(count, depth) for count in microbatches]
    # Whole turns: 1F1B on slow links repeats itself after as many microbatches as the first stage has in flight.
    longer = [min(count, depth + 2 * turn) for count in microbatches]
    first, second = simulated(short, record), simulated(longer, False)
    ends: list[float] = []
    for row, few, more, count in zip(places, short, longer, microbatches, strict=True):
        end = float(second.done[row].max())
        slope = (end - float(first.done[row].max())) / (more - few) if more > few else 0.0
        ends.append(end + slope * (count - more))
    return first, numpy.array(ends)


def schedule_of(estimator: Estimator, found: Candidate) -> str:
    """The schedule that a candidate's nodes execute."""
    if found.cut.chunks > 1:
        return "interleaved"
    return "gpipe" if estimator.workload.schedule == "gpipe" else "1f1b"


def reshared(estimator: Estimator, found: Candidate) -> Candidate:
    """The candidate with shares of the batch by the simulated speed of its pipelines, if a step gets shorter by it."""
    if len(found.places) < 2:
        return found
    best, now = found, candidate_seconds(estimator, found)
    for _ in range(3):
        _, ends = pipeline_ends(estimator, best.places, best.cut, best.microbatches, schedule_of(estimator, best))
        if float(ends.max()) < 1.01 * float(ends.mean()):
            break
        fixed, _ = estimator.rows(best.places, best.cut)
        period = numpy.maximum(ends - fixed, 1e-12) / numpy.array(best.microbatches)
        share = shares(estimator.workload.microbatches, list(fixed), list(period))
        trial = replace(best, microbatches=share, estimate=estimator.step(best.places, best.cut, share))
        seconds = candidate_seconds(estimator, trial)
        if seconds > now * (1 - 1e-3):
            break
        best, now = trial, seconds
    return best


def candidate_compute(estimator: Estimator, found: Candidate) -> float:
    """Seconds of a candidate's slowest pipeline by simulation; of one that was simulated before, the same number.

    Of many pipelines that share no line only those are simulated that the analytic time takes for the slowest.
    """
    schedule = schedule_of(estimator, found)
    if len(found.places) > SIMULATED_ROWS and not (estimator.network.site_upload or estimator.network.site_download):
        fixed, period = estimator.rows(found.places, found.cut)
        slow = numpy.sort(numpy.argsort(-(fixed + numpy.asarray(found.microbatches) * period))[:SIMULATED_ROWS])
        depths = found.in_flight and tuple(found.in_flight[row] for row in slow)
        share = tuple(found.microbatches[row] for row in slow)
        found = replace(found, places=found.places[slow], microbatches=share, in_flight=depths)
    key = (found.places.shape, found.places.tobytes(), found.cut.stages, schedule, found.microbatches, found.in_flight)
    if key not in estimator.simulated:
        _, seconds = run(estimator, found.places, found.cut, found.microbatches, schedule, depths=found.in_flight)
        estimator.simulated[key] = seconds
    return estimator.simulated[key]


def lost_part(network: Network, places: numpy.ndarray) -> float:
    """The part of the time that is lost to view changes, for devices that train are taken away: below 1."""
    lost = float(network.evictions[places].sum()) * VIEW_CHANGE_S / 3600
    return lost / (1 + lost)  # while a view changes nobody else is waited for twice


def candidate_seconds(estimator: Estimator, found: Candidate, levels: bool | None = None) -> float:
    """A candidate's step by simulation, with publishers by bandwidth and with its part of the view changes that its
    devices cause; ``levels`` as of ``found_rounds``."""
    return _undisturbed(estimator, found, levels) / (1 - lost_part(estimator.network, found.places))


def _undisturbed(estimator: Estimator, found: Candidate, levels: bool | None) -> float:
    exchange, split = found_rounds(estimator, found, levels)
    alone = float(estimator.combine(candidate_compute(estimator, found), exchange))
    if not _share_lines(estimator, found.places, found.cut, split):
        return alone
    groups = [found.places[:, position] for position in range(found.places.shape[1])]
    publishers = [publisher_fractions(estimator.network, estimator.sent, group) for group in groups]
    return max(alone, together(estimator, found.places, found.cut, found.microbatches, split, publishers)[0])
