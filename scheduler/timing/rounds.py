"""How long a group's round takes, and which node publishes how much of it.

A node of a group of n sends its encoded update of every block to the block's publisher, and each publisher sends its
results to all members. In two levels, members of other regions do this through a taker of their region. Flows of one
sender share its uplink. Where the uplink's rate is not known, the flows are counted one after another at the rate of
each path, as in DT-FM's cost, a term that predicted the rounds of that paper well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import cast

import numpy

from ..networks.blocks import Blocks, Gathered
from ..networks.devices import Matrix
from ..networks.network import Network
from ..workloads.workload import settled_pattern

AT_ONCE, SENDERS = 512, 128
"""Largest group whose pairs are all computed at once; in a larger one, SENDERS senders at a time."""


def per_bit_sent(network: Network) -> Matrix:
    """float64 [n, n]: seconds that a bit from a sender (row) to a receiver (column) takes of the time of either end."""
    if not network.written_out:
        return _gathered(network)
    with numpy.errstate(divide="ignore"):
        seconds: Matrix = 1.0 / network.rate
        # With a known uplink the flows run at the same time, and a bit takes only the uplink's time from the sender.
        known = numpy.isfinite(network.upload) & (network.upload >= 0.5 * _fastest(network))
        seconds = numpy.where(known[:, None], numpy.broadcast_to(1.0 / network.upload[:, None], seconds.shape), seconds)
    seconds = numpy.where(network.bandwidth > 0, seconds, numpy.inf)
    numpy.fill_diagonal(seconds, 0.0)
    return seconds


def _gathered(network: Network) -> Matrix:
    """The same for a network that is not written out."""
    known = _known(network)

    def values(rows: numpy.ndarray, columns: numpy.ndarray) -> Matrix:
        with numpy.errstate(divide="ignore"):
            seconds = numpy.where(known[rows], 1.0 / network.upload[rows], 1.0 / network.rate[rows, columns])
        seconds = numpy.where(network.bandwidth[rows, columns] > 0, seconds, numpy.inf)
        return numpy.where(rows == columns, 0.0, seconds)

    return cast(Matrix, Gathered(len(network), values))


def _fastest(network: Network) -> Matrix:
    off = network.bandwidth.copy()
    numpy.fill_diagonal(off, 0.0)
    return off.max(axis=1) if len(network) > 1 else numpy.zeros(len(network))


def round_seconds(
    network: Network,
    sent: Matrix,
    group: numpy.ndarray,
    bits: float,
    pattern: str = "publishers",
    fractions: Matrix | None = None,
    regions: numpy.ndarray | None = None,
) -> float:
    """Seconds of one round of a group (device indices, int [n]) whose encoded vector has `bits` bits.

    sent: per_bit_sent(network). fractions: float64 [n], the part of the blocks that each node publishes (default: equal
    parts). regions: int, the region's number of each device of the network, for two_level; without it two_level counts
    as publishers. auto is all_to_all for two members, as the nodes decide (node/state/stage_state.py), else publishers.
    """
    count = len(group)
    if count < 2:
        return 0.0
    if count > AT_ONCE and pattern not in ("ring", "all_to_all"):
        part = numpy.full(count, 1.0 / count) if fractions is None else fractions
        levels = regions[group] if pattern == "two_level" and regions is not None else None
        return _large(network, sent, group, bits, part, levels)
    square = numpy.ix_(group, group)
    cost, latency = sent[square], network.latency[square]
    with numpy.errstate(divide="ignore"):
        path = numpy.where(numpy.eye(count, dtype=bool), 0.0, 1.0 / network.rate[square])
    if pattern == "ring":
        onward = numpy.roll(numpy.arange(count), -1)
        rows = numpy.arange(count)
        slowest = float(path[rows, onward].max())
        return 2.0 * bits * slowest * (count - 1) / count + 2.0 * float(latency[rows, onward].max())
    if not (network.bandwidth[square] > 0).all():
        return float("inf")  # in every other pattern each node sends to each other one
    if settled_pattern(pattern, count) == "all_to_all":
        return _phase(numpy.full((count, count), bits), cost, path, latency)
    part = numpy.full(count, 1.0 / count) if fractions is None else fractions
    if pattern == "two_level" and regions is not None:
        return sum(_phase(bits * flows, cost, path, latency) for flows in _two_level(part, regions[group]))
    gather = numpy.broadcast_to(part[None, :] * bits, (count, count))
    spread = numpy.broadcast_to(part[:, None] * bits, (count, count))
    return _phase(gather, cost, path, latency) + _phase(spread, cost, path, latency)


def _two_level(part: Matrix, region: numpy.ndarray) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """Four float64 [n, n], one for each phase of a round in two levels: how many vectors go from member (row) to
    member.

    The phases: members to their region's takers (and publishers), takers to publishers of other regions, and the
    results back in two phases. part: float64 [n], the fraction that each publishes; region: int [n]. The members of a
    region are takers in equal shares of what other regions publish.
    """
    near = region[:, None] == region[None, :]
    size = near.sum(axis=1)
    taken = near @ part  # the fraction that each member's own region publishes
    taken = (1.0 - taken) / size
    inside = numpy.where(near, taken[None, :], 0.0)
    published = numpy.where(near, part[None, :], 0.0)
    across = numpy.where(near, 0.0, part[None, :] / size[:, None])
    return inside + published, across, across.T + published.T, inside.T


def _large(
    network: Network, sent: Matrix, group: numpy.ndarray, bits: float, part: Matrix, region: numpy.ndarray | None
) -> float:
    """Seconds of a round of a large group: the sum of ``_phase`` over its phases, computed for SENDERS senders at a
    time."""
    count = len(group)
    phases = 2 if region is None else 4
    senders, receivers = numpy.zeros((phases, count)), numpy.zeros((phases, count))
    late, alone = numpy.zeros((phases, count)), numpy.zeros(phases)
    taken = size = numpy.zeros(0)
    if region is not None:
        _, region = numpy.unique(region, return_inverse=True)
        size = numpy.bincount(region)[region].astype(numpy.float64)
        taken = (1.0 - numpy.bincount(region, weights=part)[region]) / size
    for first in range(0, count, SENDERS):
        mine = slice(first, min(first + SENDERS, count))
        bandwidth, path, cost, latency = _pairs(network, sent, group[mine, None], group[None, :])
        if not (bandwidth > 0).all():
            return float("inf")
        if region is None:
            flows = [numpy.broadcast_to(part[None, :], path.shape), numpy.broadcast_to(part[mine, None], path.shape)]
        else:
            near = region[mine, None] == region[None, :]
            flows = [
                numpy.where(near, (taken + part)[None, :], 0.0),
                numpy.where(near, 0.0, part[None, :] / size[mine, None]),
                numpy.where(near, part[mine, None], part[mine, None] / size[None, :]),
                numpy.where(near, taken[mine, None], 0.0),
            ]
        for phase, flow in enumerate(flows):
            waits = numpy.where(flow > 0, latency, 0.0)
            spent = bits * flow * cost
            senders[phase, mine] = spent.sum(axis=1) + waits.max(axis=1)
            receivers[phase] += spent.sum(axis=0)
            late[phase] = numpy.maximum(late[phase], waits.max(axis=0))
            alone[phase] = max(alone[phase], float((bits * flow * path + waits).max()))
    each = numpy.maximum(senders.max(axis=1), (receivers + late).max(axis=1))
    return float(numpy.maximum(each, alone).sum())


def _pairs(
    network: Network, sent: Matrix, rows: numpy.ndarray, columns: numpy.ndarray
) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """(bandwidth in bit/s, seconds a bit of the path alone, seconds a bit of the ends' time, latency in seconds),
    float64 [r, c] each."""
    bandwidth, latency, own = network.bandwidth[rows, columns], network.latency[rows, columns], rows == columns
    with numpy.errstate(divide="ignore"):
        if network.written_out:
            return bandwidth, numpy.where(own, 0.0, 1.0 / network.rate[rows, columns]), sent[rows, columns], latency
        lines = numpy.minimum(network.upload[rows], network.download[columns])
        path = numpy.where(own, 0.0, 1.0 / numpy.minimum(bandwidth, lines))
        known = _known(network)[rows]
        cost = numpy.where(known & ~own, 1.0 / network.upload[rows], path) if known.any() else path
    return bandwidth, path, cost, latency


def _known(network: Network) -> numpy.ndarray:
    """bool [n]: the devices whose flows share a known uplink, in a network that is not written out."""
    fastest = cast(Blocks, network.bandwidth).row_max()
    known: numpy.ndarray = numpy.isfinite(network.upload) & (network.upload >= 0.5 * fastest)
    return known


def _phase(bits: Matrix, cost: Matrix, path: Matrix, latency: Matrix) -> float:
    """Seconds of a phase whose flows all run at once: the maximum over senders, receivers and single paths."""
    flows = bits * cost
    latency = numpy.where(bits > 0, latency, 0.0)
    senders = flows.sum(axis=1) + latency.max(axis=1)
    receivers = flows.sum(axis=0) + latency.max(axis=0)
    alone = (bits * path + latency).max()
    return float(max(senders.max(), receivers.max(), alone))


def publisher_fractions(network: Network, sent: Matrix, group: numpy.ndarray) -> tuple[float, ...]:
    """The part of the blocks that each node publishes, so that the slowest node's traffic ends first.

    A node with fraction w sends 1 + (n - 2) w vectors (hivemind's linear programme): w grows
    with its bandwidth and is 0 for a node whose line is busy with its own contribution alone. The fractions sum to 1.
    """
    count = len(group)
    if count < 3:
        return (1.0 / count,) * count
    out, into = numpy.zeros(count), numpy.zeros(count)
    step = SENDERS if count > AT_ONCE else count
    for first in range(0, count, step):
        cost = sent[group[first : first + step, None], group[None, :]]
        out[first : first + step] = cost.sum(axis=1)
        into += cost.sum(axis=0)
    bandwidth = (count - 1) / numpy.maximum(out, into)
    bandwidth = bandwidth / bandwidth.max()
    # With the k fastest nodes publishing, the common level is (count - 2 + k) / (sum of their bandwidths). The right k
    # is the largest at which each of the k gets a fraction above 0.
    fastest = numpy.sort(bandwidth)[::-1]
    levels = (count - 2 + numpy.arange(1, count + 1)) / numpy.cumsum(fastest)
    level = float(levels[max(0, int((levels * fastest > 1).sum()) - 1)])
    fractions = numpy.clip((level * bandwidth - 1) / (count - 2), 0, None)
    fractions = numpy.round(fractions / fractions.sum(), 6)
    fractions[int(fractions.argmax())] += 1.0 - float(fractions.sum())
    return tuple(round(float(value), 6) for value in fractions)


def site_seconds(
    network: Network, places: numpy.ndarray, bits: Matrix, pattern: str, regions: numpy.ndarray | None = None
) -> float:
    """Seconds that the busiest shared uplink or downlink of a site needs for one round of all groups together.

    places: device indices int [d, p]; bits: float64 [p], the encoded vector of each stage; regions as in round_seconds.
    0 without shared links.
    """
    count = len(places)
    if count < 2 or not (network.site_upload or network.site_download):
        return 0.0
    leaving: dict[str, float] = {}
    entering: dict[str, float] = {}
    if pattern != "ring" and (pattern != "two_level" or regions is None):
        # Each member sends the same amount to each other one, so only the number of members outside the site counts.
        share = 1.0 if pattern == "all_to_all" else 2.0 / count
        for stage in range(places.shape[1]):
            homes = Counter(network.devices[int(device)].region for device in places[:, stage])
            for home, members in homes.items():
                load = float(bits[stage]) * share * members * (count - members)
                leaving[home] = leaving.get(home, 0.0) + load
        return _busiest(network, leaving, leaving)
    for stage in range(places.shape[1]):
        group = [network.devices[int(device)].region for device in places[:, stage]]
        levels = None
        if pattern == "two_level" and regions is not None:
            levels = numpy.sum(_two_level(numpy.full(count, 1.0 / count), regions[places[:, stage]]), axis=0)
        for one, source in enumerate(group):
            others = [(one + 1) % count] if pattern == "ring" else [two for two in range(count) if two != one]
            share = 2.0 * (count - 1) / count if pattern == "ring" else 2.0 / count
            for two in others:
                load = float(bits[stage]) * (share if levels is None else float(levels[one, two]))
                if group[two] != source:
                    leaving[source] = leaving.get(source, 0.0) + load
                    entering[group[two]] = entering.get(group[two], 0.0) + load
    return _busiest(network, leaving, entering)


def _busiest(network: Network, leaving: Mapping[str, float], entering: Mapping[str, float]) -> float:
    """Seconds of the site whose shared line takes longest. leaving, entering: site -> bits."""
    busiest = 0.0
    for traffic, limits in ((leaving, network.site_upload), (entering, network.site_download)):
        for site, load in traffic.items():
            if site in limits:
                busiest = max(busiest, load / limits[site])
    return busiest
