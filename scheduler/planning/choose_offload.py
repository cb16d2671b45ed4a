"""What of the nodes' state lies in main memory, where the job leaves it to the plan (``train.offload = "auto"``): as
little as fits. What moves costs time in every step, so the first kind with which there is a plan is taken."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from ..errors import PlanError
from ..networks.network import Network
from ..plans import Plan
from ..workloads.offload import NONE, PARAMETERS
from ..workloads.settled import OFFLOAD_KEY, offloaded
from ..workloads.workload import Workload
from .choose_settings import LEAST_S

Planned = Callable[[Workload, float, Plan | None], Plan]
"""(a workload that leaves no offload open, seconds for the search, the plan in force if it offloads in the same way) ->
a plan. Raises PlanError where there is none."""


def possible(network: Network, workload: Workload) -> tuple[str, ...]:
    """The kinds that these devices can have, the least first: a CPU has one memory, so that nothing is gained where one
    takes part."""
    kinds = tuple(one.kind for one in workload.offloads)
    if any(device.one_memory for device in network.devices):
        return tuple(kind for kind in kinds if kind == NONE)
    return kinds


def plan_offload(
    network: Network, workload: Workload, planned: Planned, time_limit: float, current: Plan | None = None
) -> Plan:
    """The plan with the least in main memory for which there is one; its ``why`` says what would not fit. PlanError:
    there is none with any kind."""
    deadline, kinds = time.monotonic() + time_limit, possible(network, workload)
    problem = PlanError("a CPU has one memory, beside which nothing can lie")
    for at, kind in enumerate(kinds):
        left = max((deadline - time.monotonic()) / (len(kinds) - at), LEAST_S)
        before = current if current is not None and current.chosen.get(OFFLOAD_KEY) == kind else None
        try:
            made = planned(offloaded(workload, kind), left, before)
        except PlanError as error:
            problem = error
            continue
        said = said_of(kind, kinds[:at])
        why = made.why if said in made.why else f"{made.why}; {said}"
        return made if made == current else replace(made, why=why)
    raise problem


def said_of(kind: str, unfit: tuple[str, ...]) -> str:
    """The sentence of a plan's ``why``."""
    if not unfit:
        return f'train.offload = "{kind}": it fits'
    *others, last = (f'"{one}"' for one in unfit)
    names = f"{', '.join(others)} and {last}" if others else last
    costs = ", and each pass waits for the weights of one block after the other" if kind == PARAMETERS else ""
    return f'train.offload = "{kind}": with {names} there is no plan that fits the memory{costs}'
