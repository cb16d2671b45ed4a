"""Which devices are near each other: in a cluster file by its regions, in a run by the measured latencies."""

from __future__ import annotations

import math

import numpy

from .network import Network

NEAR_S = 0.008
"""Nodes no further apart than this, one way, are in one region. Regions of cloud providers have up to 5 ms inside them,
and nearest neighbours are 10 ms apart."""

MOST_TOGETHER = 32
"""Largest group in which all members exchange with all others: in a larger one each member would hold too many
connections."""


def region_numbers(network: Network) -> numpy.ndarray:
    """int [n]: the number of each device's region. Where a device has no region's name, regions are the sets of devices
    that chains of near links (NEAR_S) connect."""
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


def cut_regions(numbers: numpy.ndarray, places: numpy.ndarray) -> numpy.ndarray:
    """int [n]: the regions in which a placement's rounds go in two levels.

    numbers: int [n], each device's region; places: int [d, nodes]. In groups of up to MOST_TOGETHER members the regions
    stay as they are. In larger groups, regions are cut into pieces of about sqrt(group size) members, and regions with
    few members are merged: each member then exchanges with about three times that root of others, not with all.
    """
    count = len(places)
    if count <= MOST_TOGETHER:
        return numbers
    size = math.ceil(math.sqrt(count))
    result = numpy.full(len(numbers), -1)
    labels: dict[tuple[int, int], int] = {}
    for group in places.T:
        near: dict[int, list[int]] = {}
        for device in group:
            near.setdefault(int(numbers[device]), []).append(int(device))
        few = [device for members in near.values() if len(members) < max(2, size // 3) for device in members]
        large = {number: members for number, members in near.items() if len(members) >= max(2, size // 3)}
        if len(few) == 1 and large:
            min(large.values(), key=len).extend(few)
        elif few:
            large[-1] = few
        for number, members in large.items():
            pieces = max(1, round(len(members) / size))
            for at, device in enumerate(members):
                result[device] = labels.setdefault((number, at * pieces // len(members)), len(labels))
    return result
