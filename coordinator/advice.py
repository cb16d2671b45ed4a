"""What holds a run up, and for each node: what it does, of what use that is, what would make it more useful.

Pure: a status record (coordinator/status.py) in, sentences out. The web page, ``farflung status`` and the node's own
terminal show the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
Loads = Sequence[dict[str, Any]]

FULL = 0.6
"""From this load on a device or a connection is called the bottleneck: no step keeps one busy all the time."""
_IN_TURNS = 0.3
"""The same for a link between nodes that spend most of a step on the wire: a pipeline uses its directions in turns."""
_ON_THE_WIRE = 0.5
_SHARED = 1.1
_NEAR_S = 0.008
"""Nodes no further apart than this, one way, are in one region: as in scheduler/regions.py."""


def phase_of(record: Record) -> str:
    """The phase in a person's words: a run that waits because somebody paused it is paused."""
    phase = str(record.get("phase") or "unknown")
    return "paused" if phase == "waiting" and record.get("paused") else phase


def bottleneck(record: Record, full: Loads | None = None) -> dict[str, Any] | None:
    """The busiest of ``full_of``; None while nothing is busy enough."""
    return _busiest(full_of(record) if full is None else full)


def advice(record: Record, name: str, full: Loads | None = None) -> dict[str, str]:
    """``doing``, ``use`` and ``better`` of a node, a sentence each; ``better`` is empty with nothing on its side.

    ``full``, here and beside: ``full_of`` of this record from a caller who asks for many nodes.
    """
    node = next((one for one in record.get("nodes") or () if one["node"] == name), None)
    if node is None or not node.get("in"):
        return {"doing": "is not in the run", "use": "none", "better": ""}
    role = str(node.get("role") or "")
    if node.get("stage") is None:
        spare = role.partition("spare: ")[2]
        doing = "is held as a spare" if spare else role or "waits for the first view"
        use = "steps in when another node goes" if spare else "none yet"
        return {"doing": doing, "use": use, "better": spare}
    better = _better(record, node, full_of(record) if full is None else full)
    return {"doing": _place(record, node), "use": _use(record, node), "better": better}


def told(record: Record, name: str, full: Loads | None = None) -> dict[str, str]:
    """What the node's own terminal shows: ``advice``, or that others hold the run up."""
    found, held = advice(record, name, full), bottleneck(record, full)
    if held is not None and not found["better"] and found["use"] != "none":
        found["better"] = f"nothing here: the run is held up by {held['text']}"
    return found


def regions(names: Iterable[str], links: Iterable[Record], hosts: Mapping[str, str]) -> list[list[str]]:
    """The nodes by nearness: those whose measured way is at most 8 ms, or that share an address, are together."""
    region = {name: number for number, name in enumerate(names)}

    def join(one: str, other: str) -> None:
        if one in region and other in region and region[one] != region[other]:
            old, new = sorted((region[one], region[other]), reverse=True)
            region.update({name: new for name, number in region.items() if number == old})

    first: dict[str, str] = {}
    for name, host in hosts.items():
        join(first.setdefault(host, name), name)
    for link in links:
        if float(link.get("latency_s") or 0) <= _NEAR_S and link.get("bandwidth_bps"):
            join(str(link["from"]), str(link["to"]))
    found: dict[int, list[str]] = {}
    for name, number in region.items():
        found.setdefault(number, []).append(name)
    return [found[number] for number in sorted(found)]


def of_text(used: float, most: float) -> str:
    """18 of 20 Mbit/s."""
    for limit, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if most >= limit:
            return f"{used / limit:.3g} of {most / limit:.3g} {unit}"
    return f"{used:.0f} of {most:.0f} bit/s"


# ---- loads -----------------------------------------------------------------------------------


def full_of(record: Record) -> list[dict[str, Any]]:
    """Devices and connections that are busy enough to hold the run up: ``kind`` (compute, upload, download, link),
    ``node`` (the sender of a link), ``to`` (of a link), ``load`` (fraction), ``text``.
    """
    wire = {node["node"]: float(node["parts"]["wire"]) for node in record.get("nodes") or () if node.get("parts")}

    def enough(one: Record) -> float:
        ends = [wire.get(str(one.get(end)), 0.0) for end in ("node", "to")]
        return _IN_TURNS if one["kind"] == "link" and min(ends) >= _ON_THE_WIRE else FULL

    return [one for one in _loads(record) if one["load"] >= enough(one)]


def _busiest(loads: Loads) -> dict[str, Any] | None:
    return max(loads, key=lambda one: float(one["load"]), default=None)


def _loads(record: Record) -> list[dict[str, Any]]:
    links = [link for link in record.get("links") or () if link.get("used_bps") and link.get("bandwidth_bps")]
    found = []
    for link in links:
        load = float(link["used_bps"]) / float(link["bandwidth_bps"])
        text = f"the link {link['from']} → {link['to']}: {of_text(link['used_bps'], link['bandwidth_bps'])}"
        found.append({"kind": "link", "node": link["from"], "to": link["to"], "load": load, "text": text})
    for node in record.get("nodes") or ():
        name, parts = node["node"], node.get("parts")
        if parts:
            load = float(parts["compute"]) + float(parts["codec"])
            text = f"the device of {name}: it computes for {load:.0%} of a step"
            found.append({"kind": "compute", "node": name, "load": load, "text": text})
        for kind, end in (("upload", "from"), ("download", "to")):
            used, most = _shared(links, name, end)
            # Several links of a node that carry more than its best one together do not share one narrow connection.
            if most and 0 < used <= _SHARED * most and sum(link[end] == name for link in links) > 1:
                text = f"the {kind} of {name}: {of_text(used, most)}"
                found.append({"kind": kind, "node": name, "load": used / most, "text": text})
    return found


def _shared(links: Iterable[Record], name: str, end: str) -> tuple[float, float]:
    """(bits per second over all links of a node in one direction, what the best of them was measured at)."""
    mine = [link for link in links if link[end] == name]
    best = max((float(link["bandwidth_bps"]) for link in mine), default=0.0)
    return sum(float(link["used_bps"]) for link in mine), best


# ---- sentences of a node ---------------------------------------------------------------------


def _place(record: Record, node: Record) -> str:
    stages = (record.get("view") or {})["stages"]
    held = node.get("stages") or [node["stage"]]
    spans = [f"{first}" if first == last else f"{first}–{last}" for first, last in (stages[at] for at in held)]
    one = len(held) == 1
    what = f"stage{'' if one else 's'} {', '.join(map(str, held))}"
    layers = f"layer{'' if one and '–' not in spans[0] else 's'} {', '.join(spans)}"
    return f"holds {what} ({layers}) of pipeline {int(node['pipeline']) + 1}"


def _use(record: Record, node: Record) -> str:
    share, parts = float(node.get("share") or 0.0), node.get("parts")
    use = f"{share:.0%} of every batch goes through it"
    if not parts:
        return use
    return f"{use}; it computes for {parts['compute'] + parts['codec']:.0%} of a step"


def _better(record: Record, node: Record, full: Loads) -> str:
    """What would help, by what is full on this node's side."""
    name, parts = node["node"], node.get("parts")
    busiest = _busiest([one for one in full if name in (one["node"], one.get("to"))])
    if busiest is None:
        if not parts:
            return ""
        if not full and parts["wire"] >= parts["waiting"] and parts["wire"] > parts["compute"]:
            return f"a faster way to the others: {parts['wire']:.0%} of a step passes on the wire{_worst(record, name)}"
        return ""
    stage = f"the bottleneck of stage {node['stage']}"
    detail = str(busiest["text"]).partition(": ")[2]
    if busiest["kind"] == "compute":
        return f"your device is {stage} ({detail}): a faster one, or fewer programs beside it, would help"
    if busiest["kind"] == "download" or busiest.get("to") == name:
        source = f" from {busiest['node']}" if busiest.get("to") == name else ""
        return f"your download{source} is {stage}: {detail}"
    target = f" to {busiest['to']}" if busiest["kind"] == "link" else ""
    return f"your upload{target} is {stage}: {detail}"


def _worst(record: Record, name: str) -> str:
    """Which of a node's links is the longest that it uses, with what it carries; empty where none is known."""
    mine = [link for link in record.get("links") or () if name in (link["from"], link["to"]) and link.get("used_bps")]
    known = [link for link in mine if link.get("bandwidth_bps") and link.get("latency_s")]
    if not known:
        return ""
    worst = max(known, key=lambda link: float(link["latency_s"]))
    ends = f"{worst['from']} → {worst['to']}"
    carries = of_text(worst["used_bps"], worst["bandwidth_bps"])
    return f", most of all {ends} ({carries}, {1000 * worst['latency_s']:.3g} ms one way)"
