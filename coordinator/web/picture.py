"""Makes the page's content from a status record. Pure, so that tests cover every sentence and mark on the page.

The browser only draws: which link is the bottleneck, what a link carries and how long the run may still take are
decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from ..observe.advice import for_others, phase_of
from ..store.rows import ViewRow

Record = Mapping[str, Any]

TIMELINE = 60
FORWARD, BACKWARD, UPDATES = "activations", "gradients", "updates"
BOTH = "activations and gradients"


def picture(record: Record, timeline: Sequence[Record], commands: Sequence[str] = ()) -> dict[str, Any]:
    """The page's whole state beside the curves. ``commands``: what the operator may do now."""
    view = record.get("view")
    return {
        "run": _run(record),
        "plan": _plan(view),
        "nodes": [_as_others_see_it(node) for node in record["nodes"] if node["in"]],
        "gone": [_gone(node) for node in _left(record["nodes"])],
        "links": _links(record, view),
        "timeline": list(timeline)[-TIMELINE:],
        "warnings": record["warnings"],
        "checkpoints": record["checkpoints"],
        "bottleneck": record.get("bottleneck"),
        "commands": list(commands),
        "time": record["time"],
    }


def timeline_of(views: Sequence[ViewRow], plans: Sequence[Record]) -> list[dict[str, Any]]:
    """A line for each view: when it was made, after which step, its shape, and why."""
    return [
        {
            "view": row.number,
            "time": row.time,
            "step": row.step,
            "shape": [len(plan.get("pipelines", ())), len(plan.get("stages", ()))],
            "nodes": len({name for names in plan.get("pipelines", ()) for name in names}),
            "why": row.why,
        }
        for row, plan in zip(views, plans, strict=True)
    ]


def _run(record: Record) -> dict[str, Any]:
    keys = (
        *("name", "run", "phase", "why", "step", "steps", "loss", "eval", "tokens_per_second", "step_s", "samples"),
        *("bytes_updates", "bytes_activations", "bytes_other", "bytes_dense", "times_fewer_bytes", "savings"),
        *("term", "paused"),
    )
    return {**{key: record.get(key) for key in keys}, "phase": phase_of(record), "eta_s": _eta(record)}


def _eta(record: Record) -> float | None:
    """Seconds to the last step at the present pace; None unless it trains."""
    if record.get("phase") != "training" or not record.get("step_s") or not record.get("steps"):
        return None
    return max(0, int(record["steps"]) - int(record["step"])) * float(record["step_s"])


def _plan(view: Record | None) -> dict[str, Any] | None:
    if view is None:
        return None
    total = sum(view["microbatches"]) or 1
    return {
        "view": view["view"],
        "why": view["why"],
        "stages": view["stages"],
        "pipelines": [list(dict.fromkeys(names)) for names in view["pipelines"]],
        "columns": columns(view),
        "shares": [count / total for count in view["microbatches"]],
        "spares": view.get("spares") or {},
    }


def columns(view: Record) -> list[dict[str, Any]]:
    """The columns of the picture: one stage each, or the stages that an interleaved schedule gives one node."""
    names = view["pipelines"][0]
    held = [[stage for stage, other in enumerate(names) if other == name] for name in dict.fromkeys(names)]
    return [{"stages": stages, "layers": [view["stages"][stage] for stage in stages]} for stages in held]


def _links(record: Record, view: Record | None) -> list[dict[str, Any]]:
    """Every link between nodes that are in, with what it carries for the plan and how full it is (fraction)."""
    held, roles = record.get("bottleneck") or {}, carried(view)
    present = {node["node"] for node in record["nodes"] if node["in"]}
    known = {(link["from"], link["to"]): link for link in record["links"]}
    found = []
    for source, target in dict.fromkeys((*known, *roles)):
        if source not in present or target not in present:
            continue
        link = known.get((source, target), {"from": source, "to": target})
        used, most = link.get("used_bps"), link.get("bandwidth_bps")
        found.append(
            {
                **link,
                "carries": roles.get((source, target)),
                "load": used / most if used and most else None,
                "bottleneck": _is_held(held, source, target),
            }
        )
    return found


def _is_held(held: Record, source: str, target: str) -> bool:
    """Whether the bottleneck is this link, or the upload or download that it is a part of."""
    kind, node = held.get("kind"), held.get("node")
    if kind == "link":
        return (node, held.get("to")) == (source, target)
    return (kind == "upload" and node == source) or (kind == "download" and node == target)


def carried(view: Record | None) -> dict[tuple[str, str], str]:
    """(from, to) -> what the plan sends there: activations to the next stage, gradients back, updates in a group."""
    found: dict[tuple[str, str], str] = {}
    pipelines = (view or {}).get("pipelines") or []
    for names in pipelines:
        for source, target in pairwise(names):
            if source != target:
                for pair, what in (((source, target), FORWARD), ((target, source), BACKWARD)):
                    # Of two nodes with interleaved stages each sends both kinds.
                    found[pair] = what if found.get(pair, what) == what else BOTH
    for group in zip(*pipelines, strict=True):
        for source in group:
            for target in group:
                if source != target:
                    found.setdefault((source, target), UPDATES)
    return found


def _left(nodes: list[Record]) -> list[Record]:
    """The nodes that left last, and those that may be readmitted."""
    gone = [node for node in nodes if not node["in"]]
    return [node for node in gone[:-10] if node.get("evicted")][-40:] + gone[-10:]


def _gone(node: Record) -> dict[str, Any]:
    why = str(node.get("why") or "left")
    why = why.removeprefix(f"{node['node']} ")
    more = {key: node.get(key) for key in ("held", "evicted", "device")}
    return {"node": node["node"], "left": node["left"], "why": why, **more}


def _as_others_see_it(node: Record) -> dict[str, Any]:
    """The node with its advice rephrased for other readers than its owner: "its" device instead of "your" device."""
    advice = {key: for_others(str(text)) for key, text in (node.get("advice") or {}).items()}
    return {**node, "advice": advice} if advice else dict(node)
