"""Which shapes to try, and how a placement of one shape becomes a whole candidate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy

from ..errors import PlanError
from ..networks.devices import Matrix
from ..networks.network import Network, components
from ..timing.candidate import Candidate, Places, Shape
from ..timing.estimate import IMPOSSIBLE, Cut, Estimator
from ..workloads.layers import balance, beside, held_by_stage, shares, smaller, stage_memory
from ..workloads.offload import PARAMETERS
from ..workloads.workload import Workload
from .seeds import FEW

MOST_STAGES_TRIED = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)


def shapes(devices: int, workload: Workload) -> list[Shape]:
    """The possible shapes, those that use more devices first. PlanError if the job asks for an impossible one."""
    chunk_counts = (1, 2, 3, 4) if workload.schedule == "interleaved" else (1,)
    if workload.schedule == "interleaved" and workload.chunks > 1:
        chunk_counts = (workload.chunks,)
    wished = (workload.pipelines or 1) * (workload.stages or 1)
    if wished > devices and workload.schedule != "interleaved":
        raise PlanError(
            f"{_count(workload.pipelines or 1, 'pipeline')} of {_count(workload.stages or 1, 'stage')} need {wished} "
            f"devices: {devices} joined"
        )
    most = min(devices, len(workload.layers))
    counts = [n for n in (range(1, most + 1) if devices <= 16 else MOST_STAGES_TRIED) if n <= most]
    found: list[Shape] = []
    for chunks in chunk_counts:
        wish = workload.stages
        if wish is not None and wish % chunks:
            continue
        for nodes in [wish // chunks] if wish is not None else counts:
            if nodes * chunks > len(workload.layers) or (chunks > 1 and nodes < 2) or nodes > devices:
                continue
            room = min(devices // nodes, workload.microbatches)
            pipelines = [workload.pipelines] if workload.pipelines is not None else _pipeline_counts(room, devices)
            found += [Shape(count, nodes, chunks) for count in pipelines if count <= room]
    if not found:
        raise PlanError(
            f"{_count(workload.pipelines or 1, 'pipeline')} of {_count(workload.stages or 1, 'stage')} can't be made "
            f"of {_count(devices, 'device')}"
        )
    return sorted(found, key=lambda shape: (-shape.devices, shape.chunks, shape.nodes))


def _pipeline_counts(room: int, devices: int) -> list[int]:
    """All counts where there are few; else the largest and some smaller ones, because the search itself drops single
    pipelines."""
    if devices > FEW:
        return sorted({room, room // 2}, reverse=True)
    if room <= 6:
        return list(range(room, 0, -1))
    return sorted({room, room * 3 // 4, room // 2, room // 4, 1}, reverse=True)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def cut_for(estimator: Estimator, places: Places, chunks: int = 1) -> Cut | None:
    """The layer ranges for a placement: for each position the mean speed of its devices (harmonic) and their least
    memory count. None where no cut fits the memory."""
    workload, network = estimator.workload, estimator.network
    pipelines, nodes = places.shape
    speeds = [float(1.0 / (1.0 / network.tflops[places[:, position]]).mean()) for position in range(nodes)]
    memory = [float(network.memory[places[:, position]].min()) / chunks for position in range(nodes)]
    for less in smaller(beside(workload, pipelines)):
        held = held_by_stage(less, nodes * chunks, max(1, -(-less.microbatches // pipelines)), chunks)
        ranges = balance(less, speeds * chunks, memory * chunks, held)
        if ranges is not None:
            return Cut(workload, ranges, chunks)
    return None


def pieces(estimator: Estimator, found: Candidate) -> tuple[int, ...]:
    """Into how many pieces each pipeline cuts its microbatches, so that they fit the memory of its devices; empty where
    none need to be cut."""
    workload, network, cut = estimator.workload, estimator.network, found.cut
    result = []
    for row, share in zip(found.places, found.microbatches, strict=True):
        count = 1
        for less in smaller(beside(workload, len(found.places))):
            count = workload.microbatch // less.microbatch
            if (needed_memory(less, cut, share * count) <= network.memory[row]).all():
                break
        result.append(count)
    return tuple(result) if max(result) > 1 else ()


def needed_memory(workload: Workload, cut: Cut, microbatches: int) -> Matrix:
    """float64 [nodes]: bytes that a device at each position needs for its stages, in a pipeline of so many
    microbatches."""
    held = held_by_stage(workload, len(cut.stages), max(1, microbatches), cut.chunks)
    each = [stage_memory(workload, a, b, count) for (a, b), count in zip(cut.stages, held, strict=True)]
    need: Matrix = numpy.array(each).reshape(cut.chunks, cut.nodes).sum(axis=0)
    return need


def candidate(estimator: Estimator, places: Places, spare: list[int], cut: Cut, origin: str) -> Candidate | None:
    """The placement with whole shares of the batch. None if it uses a link that does not exist, or has more pipelines
    than a batch has microbatches."""
    workload = estimator.workload
    if len(places) > workload.microbatches:
        return None
    fixed, period = estimator.rows(places, cut)
    share = shares(workload.microbatches, list(fixed), list(period))
    estimate = estimator.step(places, cut, share)
    if not estimate.seconds < IMPOSSIBLE:
        return None
    return Candidate(places, tuple(spare), cut, share, estimate, origin)


def size_text(count: float) -> str:
    """Bytes in the largest unit, up to GB, in which they are 1 or more; three digits."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.0f} {unit}" if count >= 1000 * size else f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def why_nothing_fits(network: Network, workload: Workload) -> str:
    """One sentence for a job that no placement of these devices can hold."""
    layers, workload = workload.layers, smaller(beside(workload, workload.pipelines or 1))[-1]
    largest = float(network.memory.max())
    biggest = max(range(len(layers)), key=lambda at: stage_memory(workload, at, at, 1))
    need = stage_memory(workload, biggest, biggest, 1)
    if largest < need:
        return (
            f"layer {layers[biggest].name!r} alone needs {size_text(need)}: "
            f"the largest of the {_count(len(network), 'device')} has {size_text(largest)}"
            f"{_what_would_fit(network, workload)}"
        )
    total = stage_memory(workload, 0, len(layers) - 1, 1)
    together, have = float(network.memory.sum()), "has" if len(network) == 1 else "have"
    if together < total:
        return (
            f"the model needs {size_text(total)}: the {_count(len(network), 'device')} that joined {have} "
            f"{size_text(together)} together{_what_would_fit(network, workload)}"
        )
    connected = components(network)
    if len(connected) > 1:
        return (
            f"the network falls into {len(connected)} parts with no link between them (for example "
            f"{network.names[connected[0][0]]} and {network.names[connected[1][0]]}), and no part can train alone"
        )
    missing = numpy.argwhere(network.bandwidth == 0)
    if len(missing):
        sender, receiver = (network.names[int(device)] for device in missing[0])
        return (
            f"no plan with stages = {workload.stages or 'auto'} and pipelines = {workload.pipelines or 'auto'} avoids "
            f"the links that do not exist, for example {sender} > {receiver}"
        )
    return (
        f"no plan with stages = {workload.stages or 'auto'} and pipelines = {workload.pipelines or 'auto'} fits the "
        f"memory of the {_count(len(network), 'device')} that joined{_what_would_fit(network, workload)}"
    )


def _what_would_fit(network: Network, workload: Workload) -> str:
    """What the job could say so that it would fit, or "": single changes first, the one that costs the training least
    foremost; then all of them together; then with more and more of the state in main memory."""
    plain, kinds = list(_less_memory(workload)), list(_less_on_the_device(workload))
    tried = [[one] for one in (*plain, *kinds[:1])] + [[*plain, *kinds[:1]]]
    for said, change in kinds[1:]:
        alone = workload.recompute or change.get("offload") != PARAMETERS  # which needs recompute
        tried += [[(said, change)]] * alone + [[*plain, (said, change)]]
    for changes in tried:
        words = [said for said, _ in changes]
        fields = {name: value for _, change in changes for name, value in change.items()}
        if words and _fits(network, replace(workload, **fields)):
            return f"; with {', '.join(words[:-1])}{' and ' if words[1:] else ''}{words[-1]} it would fit"
    return ""


def _less_memory(workload: Workload) -> Iterator[tuple[str, dict[str, Any]]]:
    """(keys of the job in words, fields of the workload with them). 1F1B keeps fewer microbatches than GPipe, recompute
    keeps only the layers' inputs."""
    if workload.schedule == "gpipe":
        yield 'schedule = "1f1b"', {"schedule": "1f1b"}
    if not workload.recompute:
        yield "train.recompute = true", {"recompute": True}


def _less_on_the_device(workload: Workload) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same for train.offload, the least in main memory first."""
    if workload.movable_bytes:
        less = workload.optimizer_bytes - workload.movable_bytes
        yield 'train.offload = "moments"', {"optimizer_bytes": less, "movable_bytes": 0.0}
    for one in workload.lesser:
        yield f'train.offload = "{one.kind}"', {"movable_bytes": 0.0, **one.fields}


def _fits(network: Network, workload: Workload) -> bool:
    estimator, order = Estimator(network, workload), numpy.argsort(-network.memory, kind="stable")
    for shape in shapes(len(network), workload):
        places = order[: shape.devices].reshape(shape.nodes, shape.pipelines).T
        if cut_for(estimator, places, shape.chunks) is not None:
            return True
    return False
