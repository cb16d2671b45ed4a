"""`farflung plan --memory`: the memory that each node of a plan needs, and each device of an island, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...scheduler.networks.network import Network
from ...scheduler.plans import Plan
from ...scheduler.workloads.inside import KINDS as WAYS
from ...scheduler.workloads.inside import grid_of, rank_needs
from ...scheduler.workloads.layers import beside, held_by_stage
from ...scheduler.workloads.memory import need_of
from ...scheduler.workloads.workload import Workload
from ..screen.units import bytes_text

PARTS = ("parameters", "gathered", "sections", "activations")
KINDS = ("weights", "frozen", "gradient", "moments", "reference", "errors", "copies", "activations", "messages")


def memory_of(
    job: Mapping[str, Any], workload: Workload, made: Plan, network: Network | None = None
) -> list[dict[str, Any]]:
    """For each stage the bytes that one of its nodes holds, by kind, and their sums ``device`` and ``host``; for the
    node that needs most. ``job``: the job's tables.

    Where ``network`` has islands that hold the stage, ``inside`` is what each device of the largest would hold, for
    each way in which they may share it: way -> list of records of RankNeed, ``main`` with the messages of rounds.
    """
    rows = list(_rows(workload, made))
    found = []
    for stage, layers in enumerate(made.stages):
        codec, members = made.update_codec(stage) or "", len(made.pipelines)
        depths = [made.in_flight_of(at, stage) or usual[stage] for at, (_, usual) in enumerate(rows)]
        pairs = [(small, depth) for (small, _), depth in zip(rows, depths, strict=True)]
        needs = [need_of(job, small, layers, depth, members, codec) for small, depth in pairs]
        most = max(range(members), key=lambda at: needs[at].device)
        (small, held), need = pairs[most], needs[most]
        one = {"stage": stage, "layers": list(layers), "in_flight": held, **need.record()}
        ranks = max((network.devices[network.index[name]].ranks for name in made.group(stage)) if network else [1])
        if ranks > 1:
            one["inside"] = _inside(beside(small, members), layers, held, ranks, need.host)
        found.append(one)
    return found


def _rows(workload: Workload, made: Plan) -> Iterator[tuple[Workload, list[int]]]:
    """For each pipeline the workload with the microbatches that it computes, which may be pieces of the job's, and how
    many of them each stage has in flight where the plan does not say it."""
    chunks = len(made.stages) // max(1, len(dict.fromkeys(made.pipelines[0])))
    for at, count in enumerate(made.microbatches):
        pieces = made.pieces_of(at)
        small = replace(workload, microbatch=-(-workload.microbatch // pieces), pipelines=None)
        yield small, held_by_stage(small, len(made.stages), count * pieces, chunks)


def _inside(
    workload: Workload, layers: tuple[int, int], held: int, ranks: int, host: float
) -> dict[str, list[dict[str, int]]]:
    found = {}
    for kind in WAYS:
        if grid_of(kind, ranks, workload.shares) is not None:
            needs = rank_needs(workload, layers, held, kind, ranks)
            first = replace(needs[0], main=needs[0].main + host)
            found[kind] = [one.record() for one in (first, *needs[1:])]
    return found


def island_rows(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """For a terminal: a header, and for each stage and way two rows, the island's first device and each of the others;
    empty without islands."""
    header = ("stage", "inside", "device", *PARTS, "on the device", "in main memory")
    table: list[tuple[str, ...]] = []
    for one in found:
        for kind, needs in (one.get("inside") or {}).items():
            others = "the other" if len(needs) == 2 else f"each of {len(needs) - 1} others"
            for name, need in (("the first", needs[0]), (others, needs[1])):
                parts = (bytes_text(need[part]) for part in (*PARTS, "device", "main"))
                table.append((str(one["stage"]), kind, name, *parts))
    return [header, *table] if table else []


def rows(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """For a terminal: a header and a row for each stage, without the kinds that no stage has."""
    kinds = [kind for kind in KINDS if any(one[kind] for one in found)]
    table: list[tuple[str, ...]] = [("stage", "layers", *kinds, "on the device", "in main memory")]
    for one in found:
        first, last = one["layers"]
        sums = (bytes_text(one["device"]), bytes_text(one["host"]))
        table.append((str(one["stage"]), f"{first}-{last}", *(bytes_text(one[kind]) for kind in kinds), *sums))
    return table
