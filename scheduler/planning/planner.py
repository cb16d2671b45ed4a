"""plan(): the best placement that the time limit allows."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import PlanError
from ..networks.blocks import WRITTEN_OUT
from ..networks.network import Network
from ..plans import Plan
from ..published.search import plan_dtfm
from ..search.candidates import best_candidate
from ..timing.estimate import Estimator
from ..workloads.jobs import workload_of
from ..workloads.settled import as_settled, is_open, settled
from ..workloads.workload import Workload
from .choose_inside import plan_inside
from .choose_offload import plan_offload
from .choose_settings import plan_settings
from .cost import plan_cost
from .finish import finish
from .replan import placement_of, replan

OBJECTIVES = ("step", "dtfm", "cost")


def plan(
    network: Network,
    job: Workload | Mapping[str, Any],
    *,
    objective: str = "step",
    time_limit: float = 10.0,
    seed: int = 0,
    current: Plan | None = None,
    stay: float = 3600.0,
    speed: float | None = None,
    near: Plan | None = None,
) -> Plan:
    """The plan that trains fastest, or cheapest. PlanError says in one sentence why there is none.

    job: a Workload, or a job file's content as tomllib reads it. objective: "step" (seconds of a step), "dtfm" (the
    published cost of Yuan et al. 2022, 8 x 8 unless the job says otherwise) or "cost" (dollars a token; `speed` is a
    wanted number of tokens a second). time_limit: seconds; the best plan so far is returned when it ends. The same seed
    gives the same plan where the time limit did not cut the search short. current: the plan in force; another plan is
    returned only if its gain over the expected `stay` (seconds) pays for the moves. near: a plan whose placement the
    search begins with.
    """
    if objective not in OBJECTIVES:
        raise PlanError(f"unknown objective {objective!r}: it is one of {', '.join(OBJECTIVES)}")
    if not time_limit > 0:
        raise PlanError(f"the time limit must be above 0 s, not {time_limit}")
    workload = job if isinstance(job, Workload) else workload_of(job)
    deadline = time.monotonic() + time_limit
    ordered = network.subset(sorted(network.names, key=natural))
    if objective == "dtfm":
        if not ordered.written_out:
            raise PlanError(f"the objective dtfm is for up to {WRITTEN_OUT} devices: there are {len(ordered)}")
        return plan_dtfm(ordered, settled(workload), deadline, seed)
    again = partial(plan, objective=objective, seed=seed, stay=stay, speed=speed, near=near)

    def once(joined: Network, one: Workload, seconds: float, before: Plan | None) -> Plan:
        return again(joined, one, time_limit=seconds, current=before)

    if workload.offloads:
        return plan_offload(ordered, workload, partial(once, ordered), time_limit, current)
    if workload.insides:
        return plan_inside(ordered, workload, once, time_limit, current)
    if is_open(workload):
        fixed = partial(plan, ordered, seed=seed, current=current, stay=stay)
        limit = time_limit / 2 if objective == "cost" else time_limit

        def planned(one: Workload, seconds: float, before: Plan | None) -> Plan:
            return fixed(one, time_limit=seconds, near=before or near)

        found = plan_settings(ordered, workload, planned, limit, current)
        if objective == "step":
            return found
        made = fixed(as_settled(workload, found), objective=objective, time_limit=limit, speed=speed)
        return replace(made, why=f"{made.why}; for speed alone: {found.why}")
    if current is not None:
        return replan(ordered, workload, current, deadline, seed, stay, placement_of(ordered, near))
    if objective == "cost":
        return plan_cost(ordered, workload, deadline, seed, speed)
    estimator = Estimator(ordered, workload)
    best = best_candidate(ordered, workload, deadline, seed, near=placement_of(ordered, near), estimator=estimator)
    return finish(estimator, best)


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """A sort key by which node-2 comes before node-10."""
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in parts if part)
