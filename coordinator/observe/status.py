"""The status of a run as one JSON object, made from its database alone, during the run or after it. No torch."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ...job.chosen import EVERY_KEY
from ...job.data.sampling import Position
from ...job.schema import Job
from ...job.shared import for_nodes
from ..store.lock import is_locked
from ..store.rows import CheckpointRow, EvalRow, NodeRow, ViewRow
from ..store.store import Store
from .advice import advice, bottleneck, regions, seen
from .savings import savings_text, schedule_of
from .takers.remarks import remarks
from .useful_work import ledger

_RECENT = 10
MOST_LINKS = 10_000
"""Most links in a record, which has to fit into a message. Used links come first."""


def read_status(place: Path | str) -> dict[str, Any]:
    """The status of the run in a state folder or a database; ``running``: whether a coordinator holds it now."""
    with closing(Store(place)) as store:
        if store.server is not None:
            return status_of(store, store.name, bool(store.server.leader()))
        return status_of(store, place, is_locked(Path(place)))


def status_of(
    store: Store,
    state: Path | str,
    running: bool,
    live: Mapping[str, Mapping[str, Any]] | None = None,
    used: Mapping[tuple[str, str], float] | None = None,
) -> dict[str, Any]:
    """Which nodes are in the run, what each does, and why anything waits.

    ``live``: what only the running coordinator knows of a node (``attending``, ``heard_s``, ``doing``, ``step_s``,
    ``parts``); ``used``: bits per second on each link now.
    ``phase``: preparing_start, waiting, flushing, preparing, training, done, failed, interrupted; a run whose
    coordinator ended in another way keeps its last phase and has ``running`` false.
    """
    job = json.loads(store.get("job") or "{}")
    facts = json.loads(store.get("facts") or "{}")
    view, checkpoints = store.views.last(), store.checkpoints.all()
    steps, evals = store.steps.newest(_RECENT), store.evals.newest(1)
    totals, last = store.steps.totals(), steps[-1] if steps else None
    sent = totals["bytes_updates"] + totals["bytes_activations"]
    seconds = sum(row.seconds for row in steps)
    rows = store.nodes.all()
    plan: Any = json.loads(view.plan) if view else None
    dial_out = {row.name for row in rows if row.dials_out}
    held = json.loads(store.get("held") or "{}")
    evicted = json.loads(store.get("evicted") or "{}")
    places = _places(plan)
    nodes = [_node(row, plan, places, (live or {}).get(row.name), held.get(row.name)) for row in rows]
    for node in nodes:
        node["evicted"] = evicted.get(node["node"], {}).get("why")
    record = {
        "run": store.get("run"),
        "name": job.get("run", {}).get("name"),
        "job": _told(job),
        "state": str(state),
        "running": running,
        "phase": store.get("phase") or "preparing_start",
        "why": store.get("why") or "",
        "paused": store.get("paused") or None,
        "term": int(store.get("term") or 0),
        "address": store.get("address"),
        "leader": store.server.leader() if store.server else None,
        "standbys": store.server.standbys() if store.server else [],
        "step": last.step if last else 0,
        "steps": int(store.get("steps") or 0) or facts.get("steps"),
        "loss": last.loss if last else None,
        "eval": _evaluated(store, evals[-1]) if evals else None,
        "step_s": seconds / len(steps) if steps else None,
        "tokens_per_second": sum(row.tokens for row in steps) / seconds if seconds else None,
        "samples": totals["samples"],
        "bytes_updates": totals["bytes_updates"],
        "bytes_activations": totals["bytes_activations"],
        "bytes_other": totals["bytes_other"],
        "bytes_dense": totals["bytes_dense"],
        "aqsgd_hit_rate": last.hit_rate if last else None,
        "savings": _savings(store, _updates_of(job, plan), last.step if last else 0, sent, totals["bytes_dense"]),
        "times_fewer_bytes": totals["bytes_dense"] / sent if sent else None,
        "view": _view(view, plan) if view else None,
        "nodes": nodes,
        "links": (links := _links(store.links.all(), used or {}, dial_out))[:MOST_LINKS],
        "links_left_out": max(0, len(links) - MOST_LINKS),
        "ledger": ledger(store.work.done(), store.work.scores()),
        "checkpoints": [{"step": row.step, "path": row.path} for row in checkpoints],
        "data": remarks(store),
        "target": json.loads(store.get("target") or "null"),
        "warnings": [{"time": at, "node": node, "message": text} for at, node, text in store.warnings.newest(_RECENT)],
        "time": time.time(),
    }
    _judge(record, nodes, links)
    return record


def _updates_of(job: Mapping[str, Any], plan: Mapping[str, Any] | None) -> dict[str, Any]:
    """The job's table ``updates``, with what the newest plan chose of it."""
    every = ((plan or {}).get("chosen") or {}).get(EVERY_KEY)
    return {**(job.get("updates") or {}), **({} if every is None else {"every": every})}


def _savings(store: Store, updates: Mapping[str, Any], step: int, sent: int, dense: int) -> str:
    """What compression saves, in a sentence; ``sent`` and ``dense`` are the whole run's."""
    schedule = schedule_of(updates)
    early_sent, early_dense = store.steps.bytes_until(schedule.last_dense_step)
    return savings_text(schedule, step, sent - early_sent, dense - early_dense)


def _told(job: Mapping[str, Any]) -> dict[str, Any] | None:
    """The job as those who look may see it; None before there is one, and where another version wrote it."""
    try:
        return for_nodes(Job.model_validate_json(json.dumps(job))).model_dump(mode="json")
    except ValueError:
        return None


def _judge(record: dict[str, Any], nodes: list[dict[str, Any]], links: list[dict[str, Any]]) -> None:
    """Add to the record what follows from the rest: regions, the bottleneck, advice for each node."""
    present = {node["node"]: str(node["address"]).rpartition(":")[0] for node in nodes if node["in"]}
    together = regions(present, links, present)
    region = {name: number for number, names in enumerate(together) for name in names}
    for node in nodes:
        if node["in"]:
            node["region"] = region[node["node"]]
    known = seen(record)
    record["bottleneck"] = bottleneck(record, known)
    for node in nodes:
        if node["in"]:
            node["advice"] = advice(record, node["node"], known)


def _view(row: ViewRow, plan: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "view": row.number,
        "pipelines": plan.get("pipelines"),
        "stages": plan.get("stages"),
        "microbatches": plan.get("microbatches"),
        "spares": plan.get("spares"),
        "codecs": plan.get("codecs"),
        "overlap": plan.get("overlap"),
        "step": row.step,
        "why": row.why,
        "time": row.time,
    }


def _evaluated(store: Store, row: EvalRow) -> dict[str, Any]:
    sets = {one.name: one.shown for one in store.evals.sets(row.step)}
    found = {"step": row.step, "loss": row.loss, "accuracy": row.accuracy}
    return found | ({"sets": sets} if sets else {})


def _places(plan: Mapping[str, Any] | None) -> dict[str, tuple[int, list[int], float]]:
    """(pipeline, stages, share of the batch) of every node of a plan."""
    found: dict[str, tuple[int, list[int], float]] = {}
    if plan is None:
        return found
    whole = sum(plan["microbatches"])
    for number, names in enumerate(plan.get("pipelines", [])):
        for stage, name in enumerate(names):
            found.setdefault(name, (number, [], plan["microbatches"][number] / whole))[1].append(stage)
    return found


def _node(
    row: NodeRow,
    plan: Mapping[str, Any] | None,
    places: Mapping[str, tuple[int, list[int], float]],
    live: Mapping[str, Any] | None,
    held: tuple[str, bool] | None,
) -> dict[str, Any]:
    device = json.loads(row.device or "{}")
    role, stages = "", list[int]()
    pipeline, share = None, None
    if plan is not None and row.left_at is None:
        if row.name in places:
            role = "trains"
            pipeline, stages, share = places[row.name]
        else:
            spare = plan.get("spares", {}).get(row.name)
            role = f"spare: {spare}" if spare else "waits for the next view"
    return {
        "node": row.name,
        "in": row.left_at is None,
        "role": role or ("left" if row.left_at else "waits for the first view"),
        "pipeline": pipeline,
        "stage": stages[0] if stages else None,
        "stages": stages,
        "share": share,
        "address": row.address,
        "dials_out": bool(row.dials_out),
        "device": device.get("description") or device.get("kind"),
        "kind": device.get("kind"),
        "memory_bytes": int(device.get("memory_bytes", 0)) or None,
        "tflops": device.get("tflops"),
        "joined": row.joined,
        "until": row.joined + 3600 * device["hours"] if device.get("hours") else None,
        "left": row.left_at,
        "why": row.why,
        "held": held[0] if held else None,
        **(live or {}),
    }


def _links(
    measured: Sequence[tuple[str, str, float, float]], used: Mapping[tuple[str, str], float], dial_out: set[str]
) -> list[dict[str, Any]]:
    """Every link that is used or was measured, the used ones first. One that was measured in the other direction only
    takes that number."""
    known = {(source, target): (latency, bandwidth) for source, target, latency, bandwidth in measured}
    return [
        {
            "from": source,
            "to": target,
            "latency_s": (at := known.get((source, target)) or known.get((target, source)) or (None, None))[0],
            "bandwidth_bps": at[1],
            "used_bps": used.get((source, target)),
            "way": _way(source, target, dial_out),
        }
        for source, target in dict.fromkeys((*used, *known))
    ]


def _way(source: str, target: str, dial_out: set[str]) -> str:
    """In words, which node opens a link's connection, or that it is relayed by the coordinator."""
    if {source, target} <= dial_out:
        return "relayed by the coordinator"
    return f"opened by {target if target in dial_out else source}"


def position_of(row: ViewRow | CheckpointRow) -> Position:
    """Where the training stream stood when a view was announced, or stands after a checkpoint."""
    return Position(row.step, row.cursor, tuple(json.loads(row.redo or "[]")))
