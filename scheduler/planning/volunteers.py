"""Plans for thousands of devices: cut into neighbourhoods, each planned by itself, one cut of layers for all.

A matrix of all links of 10,000 devices would take gigabytes and nobody has measured it. What is known of volunteers is
where they are and what their own line carries; a link between two is the slower line and the distance of the regions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy

from ..errors import PlanError
from ..networks.devices import Device, Matrix
from ..networks.network import Network
from ..plans import Plan
from ..search.annealing import Searcher
from ..search.candidates import best_candidate
from ..search.seeds import constructions
from ..timing.estimate import Cut, Estimator
from ..workloads.layers import balance, held_by_stage, shares
from ..workloads.workload import Workload
from .planner import natural

NEIGHBOURHOOD = 240
SAMPLE = 96
"""Devices of the sample whose plan gives all the number of stages."""


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
        """The dense network of some of the devices."""
        home = self.home[numpy.asarray(members)]
        square = numpy.ix_(home, home)
        devices = [self.devices[member] for member in members]
        up = numpy.array([device.upload for device in devices], dtype=numpy.float64)
        down = numpy.array([device.download for device in devices], dtype=numpy.float64)
        bandwidth = numpy.minimum(self.bandwidth[square], numpy.minimum(up[:, None], down[None, :]))
        return Network(devices, self.latency[square], bandwidth)


def plan_volunteers(
    volunteers: Volunteers, workload: Workload, *, time_limit: float = 600.0, seed: int = 0, reserve: float = 0.02
) -> Plan:
    """A plan for up to tens of thousands of devices. PlanError if the model fits on none of them.

    reserve: the part of the devices that is held back as spares for those that will leave.
    """
    deadline = time.monotonic() + time_limit
    random = numpy.random.default_rng(seed)
    count = len(volunteers)
    sample = sorted(random.choice(count, min(SAMPLE, count), replace=False).tolist())
    part = replace(workload, batch=max(1, workload.microbatches * len(sample) // count) * workload.microbatch)
    first = best_candidate(volunteers.network(sample), part, time.monotonic() + time_limit / 5, seed)
    stages = first.cut.nodes
    cut = _common_cut(volunteers, workload, stages) or Cut(workload, first.cut.stages)
    rows: list[list[int]] = []
    fixed: list[float] = []
    period: list[float] = []
    for members in neighbourhoods(volunteers, stages):
        if len(members) < stages:
            continue
        network = volunteers.network(members)
        pipelines = max(1, int(len(members) * (1 - reserve)) // stages)
        estimator = Estimator(network, replace(part, batch=max(part.batch, pipelines * workload.microbatch)))
        best: Searcher | None = None
        for _, places in constructions(estimator, pipelines, stages, 1e6):
            used = set(places.reshape(-1).tolist())
            searcher = Searcher(estimator, cut, places, [at for at in range(len(members)) if at not in used])
            if best is None or searcher.value < best.value:
                best = searcher
        assert best is not None
        best.anneal(random, 40, lambda: time.monotonic() > deadline, 0.002, 256)
        one, two = estimator.rows(best.places, cut)
        rows += [[members[int(device)] for device in row] for row in best.places]
        fixed += one.tolist()
        period += two.tolist()
    if not rows:
        raise PlanError(f"{count} devices don't fill one pipeline of {stages} stages")
    kept = useful(workload.microbatches, numpy.array(fixed), numpy.array(period))
    rows = [rows[pipeline] for pipeline in kept]
    share = shares(workload.microbatches, [fixed[p] for p in kept], [period[p] for p in kept])
    names = [device.name for device in volunteers.devices]
    training = {member for row in rows for member in row}
    seconds = max(fixed[p] + m * period[p] for p, m in zip(kept, share, strict=True))
    idle = sorted((names[member] for member in range(count) if member not in training), key=natural)
    return Plan(
        pipelines=tuple(tuple(names[member] for member in row) for row in rows),
        stages=cut.stages,
        microbatches=share,
        spares=dict.fromkeys(idle, "held in reserve, or its pipeline would end after all others"),
        publishers=tuple(_fractions(volunteers, [row[stage] for row in rows]) for stage in range(stages)),
        schedule="1f1b" if workload.schedule == "interleaved" else workload.schedule,
        why=f"{len(rows)} pipelines of {stages} stages: the slowest pipeline takes {seconds:.3g} s",
    )


def neighbourhoods(volunteers: Volunteers, stages: int) -> list[list[int]]:
    """Devices of one region with lines of similar speed together, a whole number of pipelines where it can be."""
    size = max(stages, NEIGHBOURHOOD // stages * stages)
    line = numpy.array([min(d.upload or 0.0, d.download or 0.0) for d in volunteers.devices])
    order = numpy.lexsort((-line, volunteers.home))
    found: list[list[int]] = []
    rest: list[int] = []
    for region in range(len(volunteers.regions)):
        mine = order[volunteers.home[order] == region].tolist()
        whole = len(mine) // stages * stages
        found += [mine[at : min(at + size, whole)] for at in range(0, whole, size)]
        rest += mine[whole:]
    return [*found, rest] if rest else found


def useful(microbatches: int, fixed: Matrix, period: Matrix) -> list[int]:
    """Pipelines that get at least one microbatch when all end together; the others would be waited for."""
    order = numpy.argsort(fixed + period, kind="stable")
    inverse = 1.0 / period[order]
    ends = (microbatches + numpy.cumsum(fixed[order] * inverse)) / numpy.cumsum(inverse)
    count = max(1, int(((fixed + period)[order] <= ends).sum()))
    return sorted(order[: min(count, microbatches)].tolist())


def round_of_volunteers(volunteers: Volunteers, plan: Plan, workload: Workload) -> float:
    """Seconds of the slowest group's round: a node with fraction w sends 1 + (n - 2) w vectors over its line, in two
    phases, each as late as the farthest pair of regions."""
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


def _common_cut(volunteers: Volunteers, workload: Workload, stages: int) -> Cut | None:
    """Equal speeds at every position; memory of the smallest tenth of the devices."""
    room = [numpy.inf if device.memory_bytes is None else device.memory_bytes for device in volunteers.devices]
    small = float(numpy.quantile(room, 0.1)) if numpy.isfinite(room).all() else numpy.inf
    held = held_by_stage(workload, stages, 2 * stages)
    ranges = balance(workload, [1.0] * stages, [small] * stages, held)
    return None if ranges is None else Cut(workload, ranges)


def _fractions(volunteers: Volunteers, group: list[int]) -> tuple[float, ...]:
    """Blocks in proportion to what each line has left when its own contribution has gone out, by bisection."""
    line = numpy.array([min(volunteers.devices[m].upload or 0.0, volunteers.devices[m].download or 0.0) for m in group])
    count = len(group)
    if count < 3:
        return (1.0 / count,) * count
    line = line / line.max()
    low, high = 0.0, (count - 1) / float(line.min())
    for _ in range(80):
        middle = (low + high) / 2
        total = float(numpy.clip((middle * line - 1) / (count - 2), 0, None).sum())
        low, high = (middle, high) if total < 1 else (low, middle)
    parts = numpy.clip((high * line - 1) / (count - 2), 0, None)
    return tuple(float(value) for value in parts / parts.sum())
