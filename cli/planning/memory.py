"""`farflung plan --memory`: the memory that each node of a plan needs, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...scheduler.plans import Plan
from ...scheduler.workloads.layers import held_by_stage
from ...scheduler.workloads.memory import need_of
from ...scheduler.workloads.workload import Workload
from ..screen.units import bytes_text

KINDS = ("weights", "frozen", "gradient", "moments", "reference", "errors", "activations", "messages")


def memory_of(job: Mapping[str, Any], workload: Workload, made: Plan) -> list[dict[str, Any]]:
    """For each stage the bytes that one of its nodes holds, by kind, and their sums ``device`` and ``host``; for the
    node that needs most. ``job``: the job's tables."""
    chunks = len(made.stages) // max(1, len(dict.fromkeys(made.pipelines[0])))
    usual = held_by_stage(workload, len(made.stages), max(made.microbatches), chunks)
    found = []
    for stage, layers in enumerate(made.stages):
        held = max(made.in_flight_of(pipeline, stage) or usual[stage] for pipeline in range(len(made.pipelines)))
        need = need_of(job, workload, layers, held, len(made.pipelines), made.update_codec(stage) or "")
        found.append({"stage": stage, "layers": list(layers), "in_flight": held, **need.record()})
    return found


def rows(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """For a terminal: a header and a row for each stage, without the kinds that no stage has."""
    kinds = [kind for kind in KINDS if any(one[kind] for one in found)]
    table: list[tuple[str, ...]] = [("stage", "layers", *kinds, "on the device", "in main memory")]
    for one in found:
        first, last = one["layers"]
        sums = (bytes_text(one["device"]), bytes_text(one["host"]))
        table.append((str(one["stage"]), f"{first}-{last}", *(bytes_text(one[kind]) for kind in kinds), *sums))
    return table
