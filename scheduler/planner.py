"""plan(): the best placement that the time limit allows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy

from .errors import PlanError
from .estimate import Estimator
from .layers import Ranges, balance, held_by_stage, shares, stage_memory
from .network import Network
from .plans import Plan
from .workload import Workload

GAIN = 0.05
"""A plan changes, or a smaller shape is preferred, only for this part of a step."""


@dataclass(frozen=True)
class Candidate:
    """A placement: device indices int [d, p], layer ranges, shares and its estimated seconds."""

    places: numpy.ndarray
    stages: Ranges
    microbatches: tuple[int, ...]
    seconds: float


def plan(
    network: Network,
    job: Workload | Mapping[str, Any],
    *,
    objective: str = "step",
    time_limit: float = 10.0,
    seed: int = 0,
    current: Plan | None = None,
) -> Plan:
    """The plan that trains fastest. PlanError, in one sentence, where none can be.

    job: a Workload, or a job file's content as tomllib reads it. time_limit: seconds; the best plan so far is
    returned when it ends. seed: the same seed gives the same plan. current: the plan in force; it is kept unless
    another one is clearly better.
    """
    workload = job if isinstance(job, Workload) else Workload.from_job(job)
    deadline = time.monotonic() + time_limit
    estimator = Estimator(network, workload)
    best: Candidate | None = None
    for pipelines, stages in shapes(len(network), workload):
        found = place(estimator, pipelines, stages, seed, deadline)
        if found is not None and (best is None or found.seconds < best.seconds * (1 - 1e-9)):
            best = found
        if best is not None and time.monotonic() > deadline:
            break
    if best is None:
        raise PlanError(_why_nothing_fits(network, workload))
    if current is not None:
        kept = _timed(estimator, current)
        if kept is not None and kept.seconds <= best.seconds * (1 + GAIN):
            return current
    return _finish(estimator, best)


def shapes(devices: int, workload: Workload) -> list[tuple[int, int]]:
    """(pipelines, stages) to try, the ones that use more devices first. PlanError if the wish can't be met."""
    wished = (workload.pipelines or 1) * (workload.stages or 1)
    if wished > devices:
        raise PlanError(
            f"{workload.pipelines or 1} pipelines of {workload.stages or 1} stages need {wished} devices: "
            f"{devices} joined"
        )
    result = []
    for stages in [workload.stages] if workload.stages else range(1, min(devices, len(workload.layers)) + 1):
        most = min(devices // stages, workload.microbatches)
        wish = [workload.pipelines] if workload.pipelines else range(most, 0, -1)
        result += [(pipelines, stages) for pipelines in wish if pipelines * stages <= devices]
    return sorted(result, key=lambda shape: (-shape[0] * shape[1], shape[1]))


def place(estimator: Estimator, pipelines: int, stages: int, seed: int, deadline: float) -> Candidate | None:
    """The best placement found for one shape, or None if none fits the memory."""
    network = estimator.network
    order = sorted(range(len(network)), key=lambda d: (-round(float(network.tflops[d]), 1), network.names[d]))
    used = sorted(order[: pipelines * stages], key=lambda d: network.names[d])
    spare = [device for device in order if device not in set(used)]
    flat = used + spare
    slots = pipelines * stages
    best = _cut(estimator, numpy.array(flat[:slots]).reshape(pipelines, stages))
    improved = True
    while improved and time.monotonic() < deadline:
        improved = False
        for left in range(slots):
            for right in range(left + 1, len(flat)):
                if time.monotonic() > deadline and best is not None:
                    return best
                trial = list(flat)
                trial[left], trial[right] = trial[right], trial[left]
                found = _cut(estimator, numpy.array(trial[:slots]).reshape(pipelines, stages))
                if found is not None and (best is None or found.seconds < best.seconds * 0.995):
                    best, flat, improved = found, trial, True
    return best


def _cut(estimator: Estimator, places: numpy.ndarray) -> Candidate | None:
    workload, network = estimator.workload, estimator.network
    pipelines, stages = places.shape
    speeds = [float(1.0 / (1.0 / network.tflops[places[:, s]]).mean()) for s in range(stages)]
    memory = [float(network.memory[places[:, s]].min()) for s in range(stages)]
    held = held_by_stage(workload, stages, -(-workload.microbatches // pipelines))
    ranges = balance(workload, speeds, memory, held)
    if ranges is None:
        return None
    fixed, period = estimator.pipeline_terms(places, ranges)
    if not numpy.isfinite(period).all():
        return None
    share = shares(workload.microbatches, list(fixed), list(period))
    estimate = estimator.step(places, ranges, share)
    return Candidate(places, ranges, share, estimate.seconds) if numpy.isfinite(estimate.seconds) else None


def _timed(estimator: Estimator, current: Plan) -> Candidate | None:
    """The plan in force, if all its nodes are still there and it still fits the job."""
    network, workload = estimator.network, estimator.workload
    if any(node not in network.index for node in current.nodes) or current.layers != len(workload.layers):
        return None
    if sum(current.microbatches) != workload.microbatches:
        return None
    if workload.stages not in (None, len(current.stages)) or workload.pipelines not in (None, len(current.pipelines)):
        return None
    if set(current.spares) != set(network.names) - set(current.nodes):
        return None
    places = numpy.array([[network.index[node] for node in pipeline] for pipeline in current.pipelines])
    seconds = estimator.step(places, current.stages, current.microbatches).seconds
    return Candidate(places, current.stages, current.microbatches, seconds)


def _finish(estimator: Estimator, best: Candidate) -> Plan:
    network = estimator.network
    pipelines = tuple(tuple(network.names[device] for device in row) for row in best.places)
    used = {name for row in pipelines for name in row}
    count, stages = best.places.shape
    idle = [name for name in network.names if name not in used]
    spares = {name: _why_spare(estimator, best, name) for name in idle}
    why = f"{count} pipelines of {stages} stages: a step is expected to take {best.seconds:.3g} s"
    return Plan(
        pipelines=pipelines,
        stages=best.stages,
        microbatches=best.microbatches,
        spares=spares,
        publishers=tuple((1.0 / count,) * count for _ in best.stages),
        schedule=estimator.workload.schedule,
        why=why,
    )


def _why_spare(estimator: Estimator, best: Candidate, name: str) -> str:
    """What the step would take with this device in the place of the slowest of its kind."""
    network = estimator.network
    device = network.index[name]
    count, stages = best.places.shape
    times = []
    for slot in range(count * stages):
        places = best.places.copy()
        places.flat[slot] = device
        times.append(estimator.step(places, best.stages, best.microbatches).seconds)
    swapped = min(times)
    if swapped > best.seconds * 1.01:
        return f"it would make a step take {swapped:.3g} s instead of {best.seconds:.3g} s"
    return f"{count} x {stages} places are filled and a larger shape is not faster"


def _why_nothing_fits(network: Network, workload: Workload) -> str:
    layers = workload.layers
    biggest = max(range(len(layers)), key=lambda at: layers[at].parameters)
    need = stage_memory(workload, biggest, biggest, 1)
    if float(network.memory.max()) < need:
        return (
            f"layer {layers[biggest].name!r} alone needs {need / 1e9:.2f} GB: "
            f"the largest device has {float(network.memory.max()) / 1e9:.2f} GB"
        )
    total = stage_memory(workload, 0, len(layers) - 1, 1)
    if float(network.memory.sum()) < total:
        return (
            f"the model needs {total / 1e9:.2f} GB: the {len(network)} joined devices have "
            f"{float(network.memory.sum()) / 1e9:.2f} GB together"
        )
    wish = replace(workload)
    return (
        f"no plan with stages = {wish.stages or 'auto'} and pipelines = {wish.pipelines or 'auto'} fits the memory "
        f"and the links of the {len(network)} joined devices"
    )
