"""predict(): a plan's step, timed by the simulation of its action lists, and where the time goes, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy

from ..errors import PlanError
from ..networks.network import Network
from ..plans import Plan
from ..timing.estimate import Cut, Estimator
from ..timing.exchange import plan_hiding, plan_rounds
from ..timing.seconds import lost_part, together
from ..timing.simulate import positions
from ..timing.simulated import device_work, slowest_end
from ..timing.transport import OVERLAPPED, Transport
from ..workloads.jobs import workload_of
from ..workloads.settled import as_chosen
from ..workloads.workload import Workload
from .explain import bottleneck_of
from .helps import best_help

FEW_HELPS = 128
"""Most training devices for which a change that might help is simulated; with more devices its gain is estimated."""


@dataclass(frozen=True)
class Prediction:
    """How long a step of a plan takes, and why.

    step_s: seconds. bubble: the part of the devices' time in a step in which they don't compute. compute_s: seconds
    of the slowest pipeline's forwards and backwards, round_s: of the slowest group's round. bottleneck: what sets the
    pace, in words. helps: the change that would shorten a step most, and by how much. cost_per_million_tokens: dollars,
    where every training device has a price, else None. seconds: name of a part of a step -> its seconds.
    """

    step_s: float
    tokens_per_second: float
    bubble: float
    compute_s: float
    round_s: float
    bottleneck: str
    helps: str
    cost_per_million_tokens: float | None
    seconds: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """The keys of `farflung plan --json`'s `predicted`."""
        result: dict[str, Any] = {
            "step_s": round(self.step_s, 6),
            "tokens_per_second": round(self.tokens_per_second, 3),
            "bubble": round(self.bubble, 4),
            "bottleneck": self.bottleneck,
            "helps": self.helps,
            "seconds": {name: round(value, 6) for name, value in self.seconds.items()},
        }
        if self.cost_per_million_tokens is not None:
            result["cost_per_million_tokens"] = round(self.cost_per_million_tokens, 6)
        return result


def predict(
    network: Network, job: Workload | Mapping[str, Any], plan: Plan, *, transport: Transport = OVERLAPPED
) -> Prediction:
    """Times a plan, the scheduler's or one of your own. PlanError if it does not fit the network or the job."""
    workload = as_chosen(job if isinstance(job, Workload) else workload_of(job), plan)
    places, cut = indices(network, workload, plan)
    estimator = Estimator(network, replace(workload, schedule=plan.schedule), plan.codecs)
    compute = slowest_end(estimator, places, cut, plan.microbatches, plan.schedule, transport, plan.in_flight)
    rounds = plan_rounds(estimator, places, cut, plan)
    waiting = float(plan_hiding(estimator, places, cut, plan).exposed(rounds).max())
    seconds = float(estimator.combine(compute, waiting))
    alone = seconds
    split = bool(plan.regions) or workload.pattern == "two_level"
    shared, line = together(estimator, places, cut, plan.microbatches, split, plan.publishers)
    used = places.reshape(-1)
    # Compute of the devices that train, as a part of their time; the trace may be of fewer microbatches than a step.
    full = device_work(estimator, places, cut, plan.microbatches)
    bubble = 1.0 - float(full.sum()) / (len(used) * seconds)
    tokens = workload.batch * workload.tokens_per_sample
    lost = lost_part(network, used)
    prices = [network.devices[int(device)].price for device in used]
    cost = None
    if all(price is not None for price in prices):
        cost = sum(price or 0.0 for price in prices) / 3600 * seconds / (1 - lost) / tokens * 1e6
    bottleneck, pair = bottleneck_of(
        estimator, places, cut, plan.microbatches, rounds, compute, plan.in_flight, waits=waiting
    )

    def timed(other: Network, changed: Workload) -> float:
        estimate = Estimator(other, replace(changed, schedule=plan.schedule), plan.codecs)
        same = Cut(changed, plan.stages, cut.chunks)
        if len(used) > FEW_HELPS:
            longer = estimate.step(places, same, plan.microbatches).seconds
            return longer / estimator.step(places, cut, plan.microbatches).seconds * alone
        ends = slowest_end(estimate, places, same, plan.microbatches, plan.schedule, transport, plan.in_flight)
        took = plan_rounds(estimate, places, same, plan)
        exchange = float(plan_hiding(estimate, places, same, plan).exposed(took).max())
        busy, _ = together(estimate, places, same, plan.microbatches, split, plan.publishers)
        return max(busy, float(estimate.combine(ends, exchange)))

    helps = best_help(network, workload, pair, places.shape[1], len(places), max(alone, shared), timed)
    if shared > seconds:
        seconds = shared
        bottleneck = f"{line}: activations and rounds together take {shared:.3g} s of it"
        if helps.startswith("no single"):
            helps = f"fewer bits, or more of {line}: with lines of their own both would take {alone:.3g} s a step"
        bubble = 1.0 - float(full.sum()) / (len(used) * seconds)
    parts = {
        "compute of the busiest device": float(full.max()),
        "slowest pipeline": compute,
        "slowest round": float(rounds.max()),
        "waiting for rounds": max(0.0, seconds - compute),
    }
    if lost:
        parts["view changes, of a step's share"] = seconds * lost / (1 - lost)
    return Prediction(
        step_s=seconds,
        tokens_per_second=tokens / seconds * (1 - lost),
        bubble=max(0.0, bubble),
        compute_s=compute,
        round_s=float(rounds.max()),
        bottleneck=bottleneck,
        helps=helps,
        cost_per_million_tokens=cost,
        seconds=parts,
    )


def indices(network: Network, workload: Workload, plan: Plan) -> tuple[numpy.ndarray, Cut]:
    """A plan's places (int [d, nodes]) and cut. PlanError names what does not fit."""
    missing = [node for node in plan.nodes if node not in network.index]
    if missing:
        raise PlanError(f"the plan uses {missing[0]!r}, which the network does not have")
    if plan.layers != len(workload.layers):
        raise PlanError(f"the plan has {plan.layers} layers: the model has {len(workload.layers)}")
    if sum(plan.microbatches) != workload.microbatches:
        raise PlanError(
            f"the plan's shares add up to {sum(plan.microbatches)} microbatches, not {workload.microbatches}"
        )
    rows = [[network.index[node] for node in pipeline] for pipeline in plan.pipelines]
    nodes = positions(rows[0])
    if any(positions(row) != nodes for row in rows):
        raise PlanError("all pipelines of a plan must have the same number of nodes")
    return numpy.array([row[:nodes] for row in rows]), Cut(workload, plan.stages, len(plan.stages) // nodes)
