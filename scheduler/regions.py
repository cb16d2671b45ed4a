"""Which devices are near each other: in a cluster file by its regions, in a run by the measured latencies."""

from __future__ import annotations

import numpy

from .network import Network

NEAR_S = 0.008
"""Nodes no further apart than this, one way, are in one region. Regions of cloud providers have up to 5 ms inside them,
and nearest neighbours are 10 ms apart."""


def region_numbers(network: Network) -> numpy.ndarray:
    """int [n]: the number of each device's region. Without names of regions, whoever a chain of near links joins."""
    if all(device.region for device in network.devices):
        number = {region: at for at, region in enumerate(network.regions)}
        return numpy.array([number[device.region] for device in network.devices])
    near = (network.latency <= NEAR_S) & (network.bandwidth > 0)
    near |= near.T
    numbers = numpy.full(len(network), -1)
    for start in range(len(network)):
        if numbers[start] >= 0:
            continue
        reached, new = {start}, [start]
        while new:
            new = [int(other) for other in numpy.flatnonzero(near[new].any(axis=0)) if int(other) not in reached]
            reached.update(new)
        numbers[list(reached)] = numbers.max() + 1
    return numbers
