"""The fast analytic time of a step: what the inner loop of the search compares placements by.

A pipeline takes its fill and drain plus one period for each further microbatch; the period is set by the slowest
device or the slowest direction of a link; enough microbatches are in flight under 1F1B to hide the round trips (see
depth.py). DT-FM's formula adds up the hops. For the published measurements that sum is 1.7 to 5 times too long, because
hops overlap and only the slowest one counts.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy

from ..networks.blocks import Gathered
from ..networks.devices import Matrix
from ..networks.network import Network
from ..networks.regions import region_numbers
from ..workloads.layers import Ranges
from ..workloads.workload import Workload, settled_pattern
from .early import Hiding, hiding, nothing_hidden
from .rounds import per_bit_sent, round_seconds
from .tied import stage_bits, tied_seconds

UNREACHABLE = 1e6
"""Seconds of latency, and seconds a bit, of a link that does not exist: so long that no plan with such a link wins."""
IMPOSSIBLE = 1e5
"""A step longer than this many seconds uses a link that does not exist."""
BARELY = 1e-9
"""Bits of a round that takes only its latencies."""


@dataclass(frozen=True)
class Estimate:
    """Seconds of a step and where they go.

    pipelines: float64 [d], each pipeline's forwards and backwards. rounds: float64 [p], each group's round.
    hiding: what the passes hide of them.
    fixed, period: float64 [d]; a pipeline of m microbatches takes fixed + m * period.
    """

    seconds: float
    pipelines: Matrix
    rounds: Matrix
    fixed: Matrix
    period: Matrix
    hiding: Hiding


class Cut:
    """A cut of the layers into stages, and the flops, bits and parameters of each stage that follow from it.

    chunks: stages that one node of a pipeline holds (interleaved); position s holds stages s, s + nodes, ... tied: bits
    of an update of the matrix that the first and the last stage share; 0 where there is none or one node has both
    stages. `update` includes these bits at both positions. passed: (parameters, flops) of the layers of each position's
    stage whose backward pass is its node's last, without the shared matrix; empty where rounds begin after the passes.
    """

    def __init__(self, workload: Workload, stages: Ranges, chunks: int = 1) -> None:
        layers = workload.layers
        micro = workload.microbatch
        self.stages = stages
        self.chunks = chunks
        self.nodes = len(stages) // chunks
        self.work = numpy.array([sum(layer.flops for layer in layers[a : b + 1]) * micro for a, b in stages])
        self.elements = numpy.array([layers[last].activation * micro for _, last in stages[:-1]], dtype=numpy.float64)
        parameters = [sum(layer.parameters for layer in layers[a : b + 1]) for a, b in stages]
        self.parameters = numpy.array(parameters, dtype=numpy.float64).reshape(chunks, self.nodes).sum(axis=0)
        both = min(layers[0].parameters, layers[-1].parameters) if workload.tied and len(layers) > 1 else 0
        shared = both if self.nodes > 1 else 0
        self.parameters[0] -= both - shared  # a node that has both layers has the matrix once
        self.update = self.parameters * numpy.array(workload.update_bits)
        self.tied = float(shared * numpy.atleast_1d(workload.update_bits)[0])
        own = [float(layer.parameters) for layer in layers]
        own[-1] -= both  # one node has it in its first layer, several exchange it apart
        own[0] -= shared
        ends = stages[: self.nodes] if workload.early_rounds is not None else ()
        self.passed = [(own[a : b + 1], [layer.flops for layer in layers[a : b + 1]]) for a, b in ends]


def link_class(network: Network, sender: int, receiver: int) -> str:
    """ "REGION" inside a region, "REGION>REGION" between two, "NODE>NODE" where there are no regions."""
    source, target = network.devices[sender], network.devices[receiver]
    if not source.region or not target.region:
        return f"{source.name}>{target.name}"
    return source.region if source.region == target.region else f"{source.region}>{target.region}"


def link_codecs(
    network: Network, workload: Workload, per_bit: Matrix, codecs: Mapping[str, str] | None
) -> tuple[Matrix, Matrix, Matrix]:
    """(bits forward, bits backward, seconds of coding) for each element over each link, float64 [n, n] each.

    codecs: link class -> name, as a plan has them; None gives every link the codec that is fastest on that link alone.
    """
    size = (len(network), len(network))
    if not workload.codecs:
        shape = [workload.activation_bits, workload.gradient_bits, workload.codec_seconds]
        forward, backward, coding = (numpy.broadcast_to(numpy.float64(value), size) for value in shape)
        return forward, backward, coding
    table = numpy.array([[choice.forward, choice.backward, choice.seconds] for choice in workload.codecs])
    if not network.written_out:
        return _gathered_codecs(network, table, per_bit, [choice.name for choice in workload.codecs], codecs or {})
    # Both directions of a link share its codec, and the slower direction decides.
    slow = numpy.maximum(per_bit, per_bit.T)
    costs = [numpy.maximum(max(row[0], row[1]) * slow, row[2]) + 1e-3 * row[2] for row in table]
    pick = numpy.argmin(numpy.array(costs), axis=0)
    if codecs is not None:
        position = {choice.name: at for at, choice in enumerate(workload.codecs)}
        labels = numpy.array(network.names)
        regions = numpy.array([device.region for device in network.devices])
        for kind, name in codecs.items():
            if name not in position:
                continue
            source, _, target = kind.partition(">")
            rows = numpy.flatnonzero((regions == source) | (labels == source))
            columns = numpy.flatnonzero((regions == (target or source)) | (labels == target))
            pick[numpy.ix_(rows, columns)] = position[name]
    chosen = table[pick]
    return chosen[:, :, 0], chosen[:, :, 1], chosen[:, :, 2]


def _gathered_codecs(
    network: Network, table: Matrix, per_bit: Matrix, names: Sequence[str], codecs: Mapping[str, str]
) -> tuple[Matrix, Matrix, Matrix]:
    """The same for a network that is not written out, whose link classes are pairs of regions."""
    regions, numbers = numpy.unique([device.region for device in network.devices], return_inverse=True)
    at = {region: number for number, region in enumerate(regions.tolist())}
    fixed = numpy.full((len(regions), len(regions)), -1)
    for kind, name in codecs.items():
        source, _, target = kind.partition(">")
        if name in names and source in at and (target or source) in at:
            fixed[at[source], at[target or source]] = names.index(name)

    def pick(rows: numpy.ndarray, columns: numpy.ndarray) -> numpy.ndarray:
        slow = numpy.maximum(per_bit[rows, columns], per_bit[columns, rows])
        costs = [numpy.maximum(max(row[0], row[1]) * slow, row[2]) + 1e-3 * row[2] for row in table]
        told = fixed[numbers[rows], numbers[columns]]
        picked: numpy.ndarray = numpy.where(told >= 0, told, numpy.argmin(numpy.array(costs), axis=0))
        return picked

    def column(which: int) -> Matrix:
        return cast(Matrix, Gathered(len(network), lambda rows, columns: table[pick(rows, columns), which]))

    return column(0), column(1), column(2)


def capped(matrix: Matrix, most: float) -> Matrix:
    """A matrix that is not written out, with each entry above ``most`` replaced by ``most``."""
    values = matrix
    return cast(Matrix, Gathered(matrix.shape[0], lambda rows, columns: numpy.minimum(values[rows, columns], most)))


def _gathered(network: Network) -> tuple[Matrix, Matrix]:
    """(seconds a bit, seconds of latency there and back) of a network that is not written out."""

    def per_bit(rows: numpy.ndarray, columns: numpy.ndarray) -> Matrix:
        with numpy.errstate(divide="ignore"):
            seconds = numpy.minimum(1.0 / network.rate[rows, columns], UNREACHABLE)
        result: Matrix = numpy.where(rows == columns, 0.0, seconds)
        return result

    def trip(rows: numpy.ndarray, columns: numpy.ndarray) -> Matrix:
        ways = numpy.minimum(network.latency[rows, columns], UNREACHABLE)
        result: Matrix = ways + numpy.minimum(network.latency[columns, rows], UNREACHABLE)
        return result

    count = len(network)
    return cast(Matrix, Gathered(count, per_bit)), cast(Matrix, Gathered(count, trip))


class Estimator:
    """Times placements of one workload on one network. Arrays of rows are vectorised over the first axis."""

    def __init__(self, network: Network, workload: Workload, codecs: Mapping[str, str] | None = None) -> None:
        self.network = network
        self.workload = workload
        if network.written_out:
            with numpy.errstate(divide="ignore"):
                self.per_bit = numpy.minimum(1.0 / network.rate, UNREACHABLE)
            numpy.fill_diagonal(self.per_bit, 0.0)
            latency = numpy.where(numpy.isfinite(network.latency), network.latency, UNREACHABLE)
            self.trip_latency = latency + latency.T
        else:
            self.per_bit, self.trip_latency = _gathered(network)
        self.upload_per_bit = 1.0 / network.upload
        self.download_per_bit = 1.0 / network.download
        self.regions = region_numbers(network)
        """int [n]: the number of each device's region."""
        sent = per_bit_sent(network)
        self.sent = numpy.minimum(sent, UNREACHABLE) if network.written_out else capped(sent, UNREACHABLE)
        self.speed = network.tflops * 1e12 * workload.efficiency
        self.islands = numpy.array([device.ranks > 1 for device in network.devices])
        """bool [n]: the nodes with several devices."""
        # Of each link: bits for each element forward and backward, and seconds of coding an element at one end.
        self.simulated: dict[Hashable, float] = {}
        """Seconds of the candidates that were simulated so far (simulated.py)."""
        self.ended: dict[Hashable, float] = {}
        """Seconds until their end of the pipelines that were simulated one by one."""
        self._last_rounds: tuple[Hashable, Matrix] = (None, numpy.zeros(0))
        self.timed_rounds: dict[Hashable, tuple[float, bool]] = {}
        """(seconds of the slowest round, whether rounds go in two levels) of candidates that were asked for."""
        self.forward_bits, self.backward_bits, self.coding = link_codecs(network, workload, self.per_bit, codecs)

    @property
    def codes(self) -> bool:
        """Whether coding takes any time."""
        return bool(self.workload.codec_seconds or self.workload.codecs)

    def rows(self, rows: numpy.ndarray, cut: Cut) -> tuple[Matrix, Matrix]:
        """(fixed, period), float64 [r] each, of pipelines given as device indices int [r, nodes]."""
        workload = self.workload
        if cut.chunks > 1:
            rows = numpy.tile(rows, (1, cut.chunks))
        forward = cut.work[None, :] / self.speed[rows]
        ratio = workload.backward_ratio
        both = forward * (1.0 + ratio)
        count = rows.shape[1]
        if count == 1:
            period = both[:, 0]
            return numpy.zeros_like(period), period
        out, back = rows[:, :-1], rows[:, 1:]
        forward_bits = cut.elements * self.forward_bits[out, back]
        backward_bits = cut.elements * self.backward_bits[out, back]
        ahead = forward_bits * self.per_bit[out, back]
        astern = backward_bits * self.per_bit[back, out]
        trip = ahead + astern + self.trip_latency[out, back]
        load = numpy.zeros_like(both)
        load[:, :-1] += forward_bits * self.upload_per_bit[out]
        load[:, 1:] += backward_bits * self.upload_per_bit[back]
        taken = numpy.zeros_like(both)
        taken[:, 1:] += forward_bits * self.download_per_bit[back]
        taken[:, :-1] += backward_bits * self.download_per_bit[out]
        shared = numpy.maximum(load, taken).max(axis=1)
        if self.codes:
            coding = cut.elements * self.coding[out, back]
            both[:, :-1] += coding
            both[:, 1:] += coding
        fill = both.sum(axis=1) + trip.sum(axis=1)
        if cut.chunks > 1:
            # A node computes all its chunks in a period, and its links carry as many messages. Every node is busy as
            # soon as the first microbatch has passed the first chunk of each.
            shape = (len(rows), cut.chunks, cut.nodes)
            period = numpy.maximum(both.reshape(shape).sum(axis=1).max(axis=1), shared)
            busy = numpy.zeros(shape[0::2])
            for hop in range(count - 1):
                busy[:, hop % cut.nodes] += numpy.maximum(ahead[:, hop], astern[:, hop])
            first = slice(0, cut.nodes - 1)
            return both[:, first].sum(axis=1) + trip[:, first].sum(axis=1), numpy.maximum(period, busy.max(axis=1))
        if workload.schedule == "gpipe":
            period = numpy.maximum(forward.max(axis=1), ahead.max(axis=1))
            period = period + numpy.maximum((both - forward).max(axis=1), astern.max(axis=1))
        else:
            period = numpy.maximum(both.max(axis=1), numpy.maximum(ahead, astern).max(axis=1))
        period = numpy.maximum(period, shared)
        return fill - period, period

    def trips(self, row: numpy.ndarray, cut: Cut) -> Matrix:
        """float64 [p - 1]: seconds that a microbatch spends on each link of one pipeline, int [p], forward and backward
        together."""
        out, back = row[:-1], row[1:]
        ahead = cut.elements * self.forward_bits[out, back] * self.per_bit[out, back]
        astern = cut.elements * self.backward_bits[out, back] * self.per_bit[back, out]
        seconds: Matrix = ahead + astern + self.trip_latency[out, back]
        return seconds

    def rounds(self, places: numpy.ndarray, cut: Cut, pattern: str | None = None) -> Matrix:
        """float64 [nodes]: seconds of one group round at each position."""
        kind, bits = pattern or self.workload.pattern, stage_bits(cut)
        key = (places.tobytes(), places.shape, cut.update.tobytes(), cut.tied, kind)
        if key == self._last_rounds[0]:
            return self._last_rounds[1]
        seconds = numpy.array(
            [
                round_seconds(self.network, self.sent, places[:, stage], float(bits[stage]), kind, regions=self.regions)
                for stage in range(places.shape[1])
            ]
        )
        if cut.tied:
            seconds[[0, -1]] += tied_seconds(self.network, self.sent, places, cut, kind, self.regions)
        self._last_rounds = key, seconds
        return seconds

    def hiding(self, places: numpy.ndarray, cut: Cut, pattern: str | None = None, latencies: bool = True) -> Hiding:
        """What of each position's round the last backward passes of a placement, int [d, nodes], hide. ``latencies``:
        whether those, and the round of a shared matrix, count as what nothing hides."""
        early = self.workload.early_rounds
        if early is None or not cut.passed:
            return nothing_hidden(places.shape[1])
        kind = pattern or self.workload.pattern
        # All members end at about the same time, so the one with the shortest pass begins last. An island offers
        # everything after the pass, and a sum waits for every member.
        forward = cut.work[: cut.nodes] / self.speed[places].max(axis=0)
        backward = numpy.where(self.islands[places].any(axis=0), 0.0, forward * self.workload.backward_ratio)
        alone = numpy.zeros(places.shape[1])
        if latencies:
            empty = partial(round_seconds, bits=BARELY, pattern=kind, regions=self.regions)
            alone = numpy.array([empty(self.network, self.sent, group) for group in places.T])
            if cut.tied:
                alone[[0, -1]] += tied_seconds(self.network, self.sent, places, cut, kind, self.regions)
        publishers = 1 if settled_pattern(kind, len(places)) == "all_to_all" else len(places)
        return hiding(early, cut.passed, backward, publishers, alone)

    def combine(self, compute: Matrix | float, exchange: Matrix | float) -> Matrix | float:
        """Seconds of a step from those of its slowest pipeline, and those that it waits for its slowest round."""
        every, overlap = self.workload.every, self.workload.overlap
        if overlap:
            # A round may take `overlap` steps and must end before the next one starts.
            return numpy.maximum(compute, numpy.asarray(exchange) / min(overlap, every))
        return compute + numpy.asarray(exchange) / every

    def step(self, places: numpy.ndarray, cut: Cut, microbatches: Sequence[int]) -> Estimate:
        """The time of a step of a placement, int [d, nodes] device indices."""
        fixed, period = self.rows(places, cut)
        pipelines = fixed + numpy.asarray(microbatches) * period
        rounds = self.rounds(places, cut)
        hides = self.hiding(places, cut)
        seconds = float(self.combine(float(pipelines.max()), float(hides.exposed(rounds).max())))
        return Estimate(seconds, pipelines, rounds, fixed, period, hides)
