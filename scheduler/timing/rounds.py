"""How long a group's round takes, and which node publishes how much of it.

A node of a group of n sends its encoded part of every block to the block's publisher, and each publisher sends its
results to all; in two levels far members do it by one of their region. Flows of one sender share its uplink: the one
that was given, or else they are taken one after another at the rate of each path, as DT-FM's cost does; that term
predicted their measured rounds well.
"""

from __future__ import annotations

import numpy

from ..networks.devices import Matrix
from ..networks.network import Network


def per_bit_sent(network: Network) -> Matrix:
    """float64 [n, n]: seconds of the sender's time for each bit to a receiver, and of the receiver's."""
    with numpy.errstate(divide="ignore"):
        seconds: Matrix = 1.0 / network.rate
        # With a known uplink the paths run side by side, and only the uplink's own time is taken from the sender.
        known = numpy.isfinite(network.upload) & (network.upload >= 0.5 * _fastest(network))
        seconds = numpy.where(known[:, None], numpy.broadcast_to(1.0 / network.upload[:, None], seconds.shape), seconds)
    seconds = numpy.where(network.bandwidth > 0, seconds, numpy.inf)
    numpy.fill_diagonal(seconds, 0.0)
    return seconds


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

    sent: per_bit_sent(network). fractions: of each node, the part of the blocks that it publishes (default equal).
    regions: of each device of the network, the number of its region, for two_level; without it that is publishers.
    auto is all_to_all for two, as the nodes take it (node/state/stage_state.py), and else publishers.
    """
    count = len(group)
    if count < 2:
        return 0.0
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
        return float("inf")  # in every other pattern each node talks to each
    if pattern == "all_to_all" or (pattern == "auto" and count == 2):
        return _phase(numpy.full((count, count), bits), cost, path, latency)
    part = numpy.full(count, 1.0 / count) if fractions is None else fractions
    if pattern == "two_level" and regions is not None:
        return sum(_phase(bits * flows, cost, path, latency) for flows in _two_level(part, regions[group]))
    gather = numpy.broadcast_to(part[None, :] * bits, (count, count))
    spread = numpy.broadcast_to(part[:, None] * bits, (count, count))
    return _phase(gather, cost, path, latency) + _phase(spread, cost, path, latency)


def _two_level(part: Matrix, region: numpy.ndarray) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """float64 [n, n] each: the vectors that go from member to member in the four phases of a round in two levels.

    Members to their region's takers, those to the publishers, and the results back. part: what each publishes;
    region: int [n]. Members of a region take turns, so each takes an equal share of what is published elsewhere.
    """
    near = region[:, None] == region[None, :]
    size = near.sum(axis=1)
    taken = near @ part  # what the own region publishes
    taken = (1.0 - taken) / size
    inside = numpy.where(near, taken[None, :], 0.0)
    published = numpy.where(near, part[None, :], 0.0)
    across = numpy.where(near, 0.0, part[None, :] / size[:, None])
    return inside + published, across, across.T + published.T, inside.T


def _phase(bits: Matrix, cost: Matrix, path: Matrix, latency: Matrix) -> float:
    """All flows of a phase at once: the slowest sender, receiver or path."""
    flows = bits * cost
    latency = numpy.where(bits > 0, latency, 0.0)
    senders = flows.sum(axis=1) + latency.max(axis=1)
    receivers = flows.sum(axis=0) + latency.max(axis=0)
    alone = (bits * path + latency).max()
    return float(max(senders.max(), receivers.max(), alone))


def publisher_fractions(network: Network, sent: Matrix, group: numpy.ndarray) -> tuple[float, ...]:
    """The part of the blocks that each node publishes, so that the slowest node's traffic ends first.

    A node with fraction w sends 1 + (n - 2) w vectors (hivemind's linear programme, solved by bisection): w grows
    with its bandwidth and is 0 for a node that is busy enough with its own contribution. Sums to 1.
    """
    count = len(group)
    if count < 3:
        return (1.0 / count,) * count
    square = numpy.ix_(group, group)
    cost = sent[square]
    bandwidth = (count - 1) / numpy.maximum(cost.sum(axis=1), cost.sum(axis=0))
    bandwidth = bandwidth / bandwidth.max()
    low, high = 0.0, (1.0 + (count - 2)) / float(bandwidth.min())
    for _ in range(60):
        middle = (low + high) / 2
        total = float(numpy.clip((middle * bandwidth - 1) / (count - 2), 0, None).sum())
        low, high = (middle, high) if total < 1 else (low, middle)
    fractions = numpy.clip((high * bandwidth - 1) / (count - 2), 0, None)
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
    for stage in range(places.shape[1]):
        group = [network.devices[int(device)].region for device in places[:, stage]]
        levels = None
        if pattern == "two_level" and regions is not None:
            levels = numpy.sum(_two_level(numpy.full(count, 1.0 / count), regions[places[:, stage]]), axis=0)
        for one, source in enumerate(group):
            others = [(one + 1) % count] if pattern == "ring" else [two for two in range(count) if two != one]
            share = {"ring": 2.0 * (count - 1) / count, "all_to_all": 1.0}.get(pattern, 2.0 / count)
            for two in others:
                load = float(bits[stage]) * (share if levels is None else float(levels[one, two]))
                if group[two] != source:
                    leaving[source] = leaving.get(source, 0.0) + load
                    entering[group[two]] = entering.get(group[two], 0.0) + load
    busiest = 0.0
    for traffic, limits in ((leaving, network.site_upload), (entering, network.site_download)):
        for site, load in traffic.items():
            if site in limits:
                busiest = max(busiest, load / limits[site])
    return busiest
