"""What a step's activations and rounds take together on the lines that both use.

Where rounds overlap with steps, a step takes as long as the longer of the two. But both use the same uplinks, so a step
also takes at least as long as any one line needs for all the bits it carries in a step. A round is hidden only while
its lines carry no activations: compute that waits for these hides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from ..networks.devices import Matrix
from ..workloads.workload import settled_pattern
from .estimate import Cut, Estimator
from .tied import stage_bits, tied_group


def traffic(
    estimator: Estimator,
    places: numpy.ndarray,
    cut: Cut,
    microbatches: Sequence[int],
    pattern: str,
    publishers: Sequence[Sequence[float]] = (),
) -> Matrix:
    """float64 [n, n]: bits of a step from each device (row) to each other (column): the pipelines' in both directions,
    and the rounds'.

    publishers: of each position, the part of the blocks that each member publishes. While a round goes, a step has 1 /
    overlap of it.
    """
    bits = activations(estimator, places, cut, microbatches)
    late = max(1, min(estimator.workload.overlap, estimator.workload.every))
    groups: list[tuple[numpy.ndarray, float, Sequence[float]]] = [
        (places[:, at], float(sent), publishers[at] if publishers else ()) for at, sent in enumerate(stage_bits(cut))
    ]
    groups += [(tied_group(places), cut.tied, ())] if cut.tied else []
    for group, sent, fractions in groups:
        members = len(group)
        if members > 1:
            part = numpy.array(fractions) if len(fractions) else numpy.full(members, 1 / members)
            if pattern == "ring":
                share = numpy.roll(numpy.eye(members), 1, axis=1) * 2 * (members - 1) / members
            elif settled_pattern(pattern, members) == "all_to_all":
                share = numpy.ones((members, members))
            else:
                share = part[None, :] + part[:, None]
            bits[numpy.ix_(group, group)] += share * sent / late
    numpy.fill_diagonal(bits, 0.0)
    return bits


def activations(estimator: Estimator, places: numpy.ndarray, cut: Cut, microbatches: Sequence[int]) -> Matrix:
    """float64 [n, n]: bits of a step from each device (row) to each other (column) that are of the pipelines, in both
    directions."""
    bits = numpy.zeros((len(estimator.network), len(estimator.network)))
    rows = numpy.tile(places, (1, cut.chunks))
    out, back = rows[:, :-1], rows[:, 1:]
    count = numpy.asarray(microbatches)[:, None]
    numpy.add.at(bits, (out, back), count * cut.elements * estimator.forward_bits[out, back])
    numpy.add.at(bits, (back, out), count * cut.elements * estimator.backward_bits[out, back])
    return bits


def busy_seconds(estimator: Estimator, places: numpy.ndarray, cut: Cut, microbatches: Sequence[int]) -> Matrix:
    """float64 [nodes]: seconds of a step for which activations take the busiest of the lines that the round of each
    position takes, too: the members' uplinks and downlinks, those of their sites where they are in several, and of a
    shared matrix the links between its members."""
    network = estimator.network
    bits = activations(estimator, places, cut, microbatches)
    own = numpy.maximum(bits.sum(axis=1) * estimator.upload_per_bit, bits.sum(axis=0) * estimator.download_per_bit)
    busy: Matrix = own[places].max(axis=0) if len(places) > 1 else numpy.zeros(places.shape[1])
    homes = numpy.array([device.region for device in network.devices])
    for sites, matrix in ((network.site_upload, bits), (network.site_download, bits.T)):
        for site, rate in sites.items():
            taken = float(matrix[numpy.ix_(homes == site, homes != site)].sum()) / rate
            inside = (homes[places] == site).sum(axis=0)
            crossed = (inside > 0) & (inside < len(places))
            busy = numpy.where(crossed, numpy.maximum(busy, taken), busy)
    if cut.tied:
        both = tied_group(places)
        square = numpy.ix_(both, both)
        most = max(float(own[both].max()), float((bits[square] * estimator.per_bit[square]).max()))
        busy[[0, -1]] = numpy.maximum(busy[[0, -1]], most)
    return busy


def busiest_line(estimator: Estimator, bits: Matrix) -> tuple[float, str]:
    """(seconds, words) of the line that takes longest for the bits of a step: a link, or the uplink or downlink of a
    device or a site."""
    network = estimator.network
    everyone = numpy.arange(len(network))
    links = bits * estimator.per_bit[everyone[:, None], everyone[None, :]]
    sender, receiver = (int(at) for at in numpy.unravel_index(int(links.argmax()), links.shape))
    found = [(float(links.max()), f"the link {network.names[sender]} > {network.names[receiver]}")]
    for what, per_bit, sums in (
        ("uplink", estimator.upload_per_bit, bits.sum(axis=1)),
        ("downlink", estimator.download_per_bit, bits.sum(axis=0)),
    ):
        device = int((sums * per_bit).argmax())
        found.append((float((sums * per_bit).max()), f"the {what} of {network.names[device]}"))
    homes = numpy.array([device.region for device in network.devices])
    for what, sites, matrix in (("uplink", network.site_upload, bits), ("downlink", network.site_download, bits.T)):
        for site, rate in sites.items():
            leaving = float(matrix[numpy.ix_(homes == site, homes != site)].sum())
            found.append((leaving / rate, f"the {what} of {site}"))
    return max(found)
