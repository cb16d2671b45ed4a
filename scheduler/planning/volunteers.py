"""Thousands of volunteers' devices, between which no link was measured.

A matrix of all links of 10,000 devices would take gigabytes, and nobody has measured them. Known are each volunteer's
region and line: the link between two has the rate of the slower line and the latency between their regions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy

from ..errors import PlanError
from ..networks.blocks import Blocks
from ..networks.devices import Device, Matrix
from ..networks.network import Network
from ..plans import Plan
from ..timing.estimate import Cut
from ..workloads.workload import Workload
from .planner import plan


class Volunteers:
    """Devices with lines of their own in regions whose distances are known.

    latency: float64 [r, r] one-way seconds between regions (diagonal: inside one). bandwidth: float64 [r, r] bit/s of
    one flow, infinite where only the lines limit it. Every device needs upload and download.
    """

    def __init__(
        self, devices: Sequence[Device], regions: Sequence[str], latency: Matrix, bandwidth: Matrix | None = None
    ) -> None:
        size = (len(regions), len(regions))
        if latency.shape != size:
            raise PlanError(f"latency must be {size[0]} x {size[0]}, one row for each region")
        unknown = [device.region for device in devices if device.region not in set(regions)]
        if unknown:
            raise PlanError(f"a device is in the unknown region {unknown[0]!r}")
        lineless = [device.name for device in devices if device.upload is None or device.download is None]
        if lineless:
            raise PlanError(f"{lineless[0]!r} needs upload and download")
        self.devices = tuple(devices)
        self.regions = tuple(regions)
        self.latency = latency
        self.bandwidth = numpy.full(size, numpy.inf) if bandwidth is None else bandwidth
        at = {name: number for number, name in enumerate(regions)}
        self.home = numpy.array([at[device.region] for device in devices])

    def __len__(self) -> int:
        return len(self.devices)

    def network(self, members: Sequence[int]) -> Network:
        """The network of some of the devices; of many, its links stay a table by region."""
        chosen = numpy.asarray(members)
        devices = [self.devices[member] for member in members]
        widest = max(max(device.upload or 0.0, device.download or 0.0) for device in devices)
        home, table = self.home[chosen], numpy.minimum(self.bandwidth, widest)
        return Network(devices, Blocks(home, self.latency, 0.0), Blocks(home, table, math.inf))


def plan_volunteers(
    volunteers: Volunteers, workload: Workload, *, time_limit: float = 600.0, seed: int = 0, reserve: float = 0.02
) -> Plan:
    """A plan for up to tens of thousands of devices. PlanError if the model does not fit on them.

    reserve: the part of the devices, the slowest ones, that are kept as spares for those that will leave.
    """
    count = len(volunteers)
    order = numpy.argsort([device.tflops for device in volunteers.devices], kind="stable")
    held, taken = order[: int(reserve * count)], numpy.sort(order[int(reserve * count) :])
    made = plan(volunteers.network(taken.tolist()), workload, time_limit=time_limit, seed=seed)
    names = [volunteers.devices[member].name for member in held]
    return replace(made, spares={**made.spares, **dict.fromkeys(names, "held in reserve for those that will leave")})


def round_of_volunteers(volunteers: Volunteers, plan: Plan, workload: Workload) -> float:
    """Seconds of the slowest group's round: a node with fraction w sends 1 + (n - 2) w vectors over its line, in two
    phases, each of which waits for the latency between the two farthest regions."""
    cut = Cut(workload, plan.stages)
    at = {device.name: device for device in volunteers.devices}
    far = 2 * float(volunteers.latency.max())
    slowest = 0.0
    for stage in range(len(plan.stages)):
        group = plan.group(stage)
        line = numpy.array([min(at[node].upload or 0.0, at[node].download or 0.0) for node in group])
        parts = numpy.array(plan.publishers[stage]) if plan.publishers else numpy.full(len(group), 1 / len(group))
        load = (1 + max(len(group) - 2, 0) * parts) * float(cut.update[stage])
        slowest = max(slowest, float((load / line).max()) + far)
    return slowest if len(plan.pipelines) > 1 else 0.0
