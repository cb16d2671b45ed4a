"""The pipelines of a placement, simulated: when each ends, and how long its devices compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy

from ..networks.devices import Matrix
from .candidate import Candidate
from .compiled import compiled, is_loaded
from .depth import Depths, in_flight
from .estimate import Cut, Estimator
from .pipeline import pipeline_end
from .simulate import simulate
from .transport import OVERLAPPED, Trace, Transport

SIMULATED_ROWS = 32
"""Most pipelines of a candidate that a search simulates."""
EVENTS_AT_ONCE = 60_000
"""Most actions of one simulation; a longer step is simulated in part and extended by its steady period."""
FEW_ACTIONS = 4_000
"""A pipeline with at most this many actions is simulated whole."""


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


def slowest_end(
    estimator: Estimator,
    places: numpy.ndarray,
    cut: Cut,
    microbatches: tuple[int, ...],
    schedule: str,
    transport: Transport = OVERLAPPED,
    depths: Depths | None = None,
) -> float:
    """Seconds of the slowest pipeline; see ends_of."""
    return float(ends_of(estimator, places, cut, microbatches, schedule, transport, depths).max())


def ends_of(
    estimator: Estimator,
    places: numpy.ndarray,
    cut: Cut,
    microbatches: tuple[int, ...],
    schedule: str,
    transport: Transport = OVERLAPPED,
    depths: Depths | None = None,
) -> Matrix:
    """float64 [d]: seconds until each pipeline ends, as from ``pipeline_ends`` but without a trace; pipelines that
    share no line are simulated one by one, and equal ones once."""
    network = estimator.network
    if transport != OVERLAPPED or cut.chunks > 1 or network.site_upload or network.site_download:
        return pipeline_ends(estimator, places, cut, microbatches, schedule, transport, depths=depths)[1]
    if depths is None:
        depths = in_flight(estimator, places, cut, microbatches) if schedule == "1f1b" else ()
    held = depths or (tuple(range(places.shape[1], 0, -1)),) * len(places)
    ends = []
    for row, share, most in zip(places, microbatches, held, strict=True):
        key = (row.tobytes(), cut.stages, schedule, share, most)
        if key not in estimator.ended:
            estimator.ended[key] = _end(estimator, row, cut, share, schedule, most)
        ends.append(estimator.ended[key])
    return numpy.array(ends)


def _end(estimator: Estimator, row: numpy.ndarray, cut: Cut, share: int, schedule: str, held: Sequence[int]) -> float:
    """Seconds until one pipeline, row int [p], ends; a long step is extended by its period."""
    network, workload, out, back = estimator.network, estimator.workload, row[:-1], row[1:]
    forward = cut.work / estimator.speed[row]
    backward = forward * workload.backward_ratio
    if estimator.codes and len(row) > 1:
        coding = cut.elements * estimator.coding[out, back] / 2
        for part in (forward, backward):
            part[:-1] += coding
            part[1:] += coding
    ahead, astern = cut.elements * estimator.forward_bits[out, back], cut.elements * estimator.backward_bits[out, back]
    bits = numpy.concatenate([ahead, astern])
    latency = numpy.concatenate([network.latency[out, back], network.latency[back, out]])
    with numpy.errstate(divide="ignore"):
        link = 1.0 / numpy.concatenate([network.bandwidth[out, back], network.bandwidth[back, out]])
    if not numpy.isfinite(link).all():
        return float(pipeline_ends(estimator, row[None], cut, (share,), schedule, depths=(tuple(held),))[1][0])
    up, down = 1.0 / network.upload[row], 1.0 / network.download[row]
    fast = is_loaded()
    loop = compiled(pipeline_end) if fast else pipeline_end
    most = numpy.array(held)
    arrays = [most, forward, backward, bits, latency, link, up, down]
    given = arrays if fast else [one.tolist() for one in arrays]

    def end(count: int) -> float:
        return float(loop(count, schedule == "gpipe", *given))

    stages = len(row)
    actions, turn = 2 * stages * share, min(max(held), 4 * stages)
    depth = 3 * turn
    if share <= depth or (actions <= EVENTS_AT_ONCE and (actions <= FEW_ACTIONS or schedule == "gpipe")):
        return end(share)
    first, second = end(depth), end(min(share, depth + 2 * turn))
    return second + (second - first) / (min(share, depth + 2 * turn) - depth) * (share - min(share, depth + 2 * turn))


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

    whole: simulate every microbatch, however long that takes. depths: as in a plan; None: those that a plan would
    choose.
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
    if whole or most <= depth or (actions <= EVENTS_AT_ONCE and (actions <= FEW_ACTIONS or schedule == "gpipe")):
        trace = simulated(list(microbatches), record)
        return trace, numpy.array([float(trace.done[row].max()) for row in places])
    # The first `depth` microbatches of each pipeline reach its steady state; the rest repeats its period.
    short = [min(count, depth) for count in microbatches]
    # The extension is measured over whole turns: on slow links, 1F1B repeats itself after as many microbatches as the
    # first stage has in flight.
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


def candidate_compute(estimator: Estimator, found: Candidate) -> float:
    """Simulated seconds of a candidate's slowest pipeline; kept, so that a candidate is simulated once.

    Of many pipelines that share no line, only those with the longest analytic times are simulated.
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
        estimator.simulated[key] = slowest_end(
            estimator, found.places, found.cut, found.microbatches, schedule, depths=found.in_flight
        )
    return estimator.simulated[key]
