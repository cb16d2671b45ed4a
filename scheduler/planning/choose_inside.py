"""How the devices of islands share their stages, and a plan for it: the cheapest way with which a plan fits the memory.

A plan is first made as if an island's memory were one. Then every device of it is checked, and where one would hold too
much, the plan is made again with less memory for that island.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from ..errors import PlanError
from ..networks.devices import Device
from ..networks.network import Network
from ..plans import Plan
from ..workloads.inside import PIECES, grid_of, rank_needs
from ..workloads.layers import held_by_stage, trained
from ..workloads.settled import INSIDE_KEY, as_settled
from ..workloads.workload import Workload
from .choose_settings import LEAST_S

TRIES = 4
"""Plans with less and less memory for islands that have too little for the one before."""

Planned = Callable[[Network, Workload, float, Plan | None], Plan]
"""(network of single devices, workload, seconds, the plan in force) -> a plan. Raises PlanError."""


def plan_inside(
    network: Network,
    workload: Workload,
    planned: Planned,
    limit: float,
    current: Plan | None = None,
) -> Plan:
    """The plan for a network with islands. PlanError, in one sentence: nothing fits.

    limit: seconds. current: the plan in force. A plan's ``chosen`` has the way if the job leaves it open.
    """
    deadline = time.monotonic() + limit
    ranks = [device.ranks for device in network.devices]
    kinds, one = workload.insides, replace(workload, insides=(), auto_inside=False)
    if not one.shares and not workload.auto_inside:  # not known, and the job says that they can
        one = replace(one, shares=math.lcm(*ranks))
    if max(ranks) == 1:
        kinds = kinds[:1]
    before = current
    if current is not None and INSIDE_KEY in current.chosen:
        before = replace(current, chosen=_others(current.chosen))
    problem, unfit = None, []
    for kind in kinds:
        if any(count > 1 and grid_of(kind, count, one.shares) is None for count in ranks):
            problem = problem or PlanError(f'parallel.inside = "{kind}": an island here cannot share the matrices so')
            continue
        try:
            made = _fitting(network, one, planned, kind, deadline, before)
        except PlanError as error:
            problem = error
            unfit.append(kind)
            continue
        if not workload.auto_inside:
            return made
        said = f"islands share their stages by {kind}" + (f": {' and '.join(unfit)} would not fit" if unfit else "")
        why = f"{made.why}; {said}" if max(ranks) > 1 and said not in made.why else made.why
        made = replace(made, chosen={**made.chosen, INSIDE_KEY: kind}, why=why)
        return current if current is not None and made == current else made
    assert problem is not None
    if len(unfit) > 1:
        raise PlanError(f"{problem} (islands that share their stages by {', '.join(unfit)} alike)") from problem
    raise problem


def room_of(network: Network, workload: Workload, kind: str) -> Network:
    """The network with each island as one device with the memory of all of its devices, as far as ``kind`` joins it."""
    return network.with_devices([_joined(device, workload, kind) for device in network.devices])


def _joined(device: Device, workload: Workload, kind: str) -> Device:
    if device.ranks == 1 or device.memory_bytes is None or kind == "ddp":
        return replace(device, ranks=1)
    each = workload.optimizer_bytes + workload.round_bytes
    # Devices have only their pieces of weights and gradients, and main memory has all.
    memory = min(device.ranks * device.memory_bytes * each / PIECES, device.main_bytes or math.inf)
    return replace(device, ranks=1, memory_bytes=memory)


def _fitting(
    network: Network, workload: Workload, planned: Planned, kind: str, deadline: float, current: Plan | None
) -> Plan:
    """A plan that fits every device of every island."""
    joined, over = room_of(network, workload, kind), dict[str, float]()
    for _ in range(TRIES):
        try:
            made = planned(joined, workload, max(deadline - time.monotonic(), LEAST_S), current)
        except PlanError:
            if kind == "ddp" and over:
                break  # the devices have room
            raise
        over = {name: part for name, part in filled(network, workload, made, kind).items() if part > 1}
        if not over:
            return made
        less = [
            replace(device, memory_bytes=0.99 * (device.memory_bytes or 0.0) / over[device.name])
            if device.name in over
            else device
            for device in joined.devices
        ]
        joined = joined.with_devices(less)
    worst = max(over, key=lambda name: over[name])
    if kind == "ddp":
        raise PlanError(f"{worst}: what lies in main memory would need {over[worst]:.2g} times what it has")
    raise PlanError(f"{worst}: each of its devices would need {over[worst]:.2g} times its memory with {kind}")


def filled(network: Network, workload: Workload, made: Plan, kind: str) -> dict[str, float]:
    """For each island whose memory is known and joined: what its fullest device holds of the plan, divided by the
    device's memory; and where its weights lie in main memory, what they take there, divided by that."""
    found: dict[str, float] = {}
    settled = as_settled(workload, made)
    chunks = len(made.stages) // max(1, len(dict.fromkeys(made.pipelines[0])))
    for number, pipeline in enumerate(made.pipelines):
        pieces = made.pieces[number] if made.pieces else 1
        small = replace(settled, microbatch=-(-settled.microbatch // pieces), batch=settled.batch, pipelines=None)
        usual = held_by_stage(settled, len(made.stages), made.microbatches[number] * pieces, chunks)
        for name in dict.fromkeys(pipeline):
            device = network.devices[network.index[name]]
            if device.ranks > 1 and kind == "ddp" and settled.main_bytes and device.main_bytes and device.memory_bytes:
                each = settled.main_bytes + (device.ranks - 1) * PIECES
                count = sum(trained(settled, *made.stages[stage]) for stage in made.stages_of(name))
                found[name] = each * count / device.main_bytes
            if device.ranks == 1 or device.memory_bytes is None or kind == "ddp":
                continue
            held = 0.0
            for stage in made.stages_of(name):
                depth = made.in_flight_of(number, stage) or usual[stage]
                needs = rank_needs(small, made.stages[stage], depth, kind, device.ranks)
                held += max(need.device for need in needs)
            found[name] = held / device.memory_bytes
    return found


def _others(chosen: Mapping[str, int | bool | str]) -> dict[str, int | bool | str]:
    return {key: value for key, value in chosen.items() if key != INSIDE_KEY}
