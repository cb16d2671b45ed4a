"""The bottleneck of a run, and for each node its role, its use to the run, and what would make it more useful.

Pure: a status record (coordinator/observe/status.py) in, sentences out. The web page, ``farflung status`` and the
node's own terminal show the same ones.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]
Loads = Sequence[dict[str, Any]]

FULL = 0.6
"""Load (fraction of the time) from which a device or a connection is called the bottleneck; no step keeps one busy all
the time."""
_IN_TURNS = 0.3
"""The same for a link between nodes that spend most of a step on the wire, where a pipeline uses the two directions in
turns."""
_ON_THE_WIRE = 0.5
_SHARED = 1.1
_YOURS = re.compile(r"\byour\b")
_NEAR_S = 0.008
"""Nodes no further apart than this, one way, are in one region: as in scheduler/regions.py."""


def phase_of(record: Record) -> str:
    """The phase for people: a run that waits because a person paused it is "paused"."""
    phase = str(record.get("phase") or "unknown")
    return "paused" if phase == "waiting" and record.get("paused") else phase


@dataclass(frozen=True)
class Seen:
    """What advice needs from a status record, collected in one pass."""

    nodes: Mapping[str, Record]
    links: Mapping[str, Sequence[Record]]
    """Node -> its links that are used and measured."""
    full: Loads
    """The result of ``full_of``."""
    held: dict[str, Any] | None
    """The busiest of ``full``."""
    full_at: Mapping[str, Loads]
    """Node -> the loads of ``full`` on its device, its connection or its links."""


def seen(record: Record) -> Seen:
    """Collect what ``advice`` needs from a record."""
    links: dict[str, list[Record]] = defaultdict(list)
    for link in record.get("links") or ():
        if link.get("used_bps") and link.get("bandwidth_bps"):
            for end in {link["from"], link["to"]}:
                links[end].append(link)
    full = full_of(record)
    full_at: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in full:
        for name in {one["node"], one.get("to", one["node"])}:
            full_at[name].append(one)
    return Seen({node["node"]: node for node in record.get("nodes") or ()}, links, full, _busiest(full), full_at)


def bottleneck(record: Record, known: Seen | None = None) -> dict[str, Any] | None:
    """The busiest of ``full_of``; None while nothing is busy enough."""
    return _busiest(full_of(record)) if known is None else known.held


def advice(record: Record, name: str, known: Seen | None = None) -> dict[str, str]:
    """``doing``, ``use`` and ``better`` of a node, a sentence each; ``better`` is empty where nothing at the node would
    help.

    ``known``, here and below: the result of ``seen`` for this record, given by callers that ask for many nodes.
    """
    known = known or seen(record)
    node = known.nodes.get(name)
    if node is None or not node.get("in"):
        return {"doing": "is not in the run", "use": "none", "better": ""}
    role = str(node.get("role") or "")
    if node.get("stage") is None:
        spare = role.partition("spare: ")[2]
        doing = "is held as a spare" if spare else role or "waits for the first view"
        use = "steps in when another node goes" if spare else "none yet"
        return {"doing": doing, "use": use, "better": spare}
    return {"doing": _place(record, node), "use": _use(record, node), "better": _better(node, known)}


def for_others(sentence: str) -> str:
    """The sentence about "your" device as other readers see it: "its" device."""
    return _YOURS.sub("its", sentence)


def told(record: Record, name: str, known: Seen | None = None) -> dict[str, str]:
    """The advice that the node's own terminal shows: ``advice``, or that others hold the run up."""
    known = known or seen(record)
    found, held = advice(record, name, known), known.held
    if held is not None and not found["better"] and found["use"] != "none":
        found["better"] = f"nothing here: the run is held up by {held['text']}"
    return found


def regions(names: Iterable[str], links: Iterable[Record], hosts: Mapping[str, str]) -> list[list[str]]:
    """The nodes by region: two are together when their measured latency is at most 8 ms or they share an address."""
    order = {name: number for number, name in enumerate(names)}
    above = {name: name for name in order}

    def first_of(name: str) -> str:
        """The representative of a name's region: its first node."""
        while above[name] != name:
            above[name] = name = above[above[name]]
        return name

    def join(one: str, other: str) -> None:
        if one in order and other in order:
            old, new = sorted((first_of(one), first_of(other)), key=order.__getitem__)
            above[new] = old

    first: dict[str, str] = {}
    for name, host in hosts.items():
        join(first.setdefault(host, name), name)
    for link in links:
        if float(link.get("latency_s") or 0) <= _NEAR_S and link.get("bandwidth_bps"):
            join(str(link["from"]), str(link["to"]))
    found: dict[str, list[str]] = {}
    for name in order:
        found.setdefault(first_of(name), []).append(name)
    return list(found.values())


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
    shared = {end: _shared(links, end) for end in ("from", "to")}
    for node in record.get("nodes") or ():
        name, parts = node["node"], node.get("parts")
        if parts:
            load = float(parts["compute"]) + float(parts["codec"])
            text = f"the device of {name}: it computes for {load:.0%} of a step"
            found.append({"kind": "compute", "node": name, "load": load, "text": text})
        for kind, end in (("upload", "from"), ("download", "to")):
            used, most, count = shared[end].get(name, (0.0, 0.0, 0))
            # Links of a node that together carry more than its best one alone do not share one narrow connection.
            if most and 0 < used <= _SHARED * most and count > 1:
                text = f"the {kind} of {name}: {of_text(used, most)}"
                found.append({"kind": kind, "node": name, "load": used / most, "text": text})
    return found


def _shared(links: Iterable[Record], end: str) -> dict[str, tuple[float, float, int]]:
    """By node: (bits per second over all its links in one direction, the measured rate of the best one, how many)."""
    used: dict[str, float] = defaultdict(float)
    best: dict[str, float] = defaultdict(float)
    count: Counter[str] = Counter()
    for link in links:
        name = link[end]
        used[name] += float(link["used_bps"])
        best[name] = max(best[name], float(link["bandwidth_bps"]))
        count[name] += 1
    return {name: (used[name], best[name], count[name]) for name in count}


# ---- sentences of a node ---------------------------------------------------------------------


def _place(record: Record, node: Record) -> str:
    stages = (record.get("view") or {})["stages"]
    held = node.get("stages") or [node["stage"]]
    spans = [f"{first}" if first == last else f"{first}–{last}" for first, last in (stages[at] for at in held)]
    one = len(held) == 1
    what = f"stage{'' if one else 's'} {', '.join(map(str, held))}"
    layers = f"layer{'' if one and '–' not in spans[0] else 's'} {', '.join(spans)}"
    return f"holds {what} ({layers}) of pipeline {int(node['pipeline'])}"


def _use(record: Record, node: Record) -> str:
    share, parts = float(node.get("share") or 0.0), node.get("parts")
    use = f"{share:.0%} of every batch goes through it"
    if not parts:
        return use
    return f"{use}; it computes for {parts['compute'] + parts['codec']:.0%} of a step"


def _better(node: Record, known: Seen) -> str:
    """What would help, by the bottleneck on this node's side."""
    name, parts = node["node"], node.get("parts")
    busiest = _busiest(known.full_at.get(name, ()))
    if busiest is None:
        if not parts:
            return ""
        if not known.full and parts["wire"] >= parts["waiting"] and parts["wire"] > parts["compute"]:
            return f"a faster way to the others: {parts['wire']:.0%} of a step passes on the wire{_worst(known, name)}"
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


def _worst(known: Seen, name: str) -> str:
    """A node's used link with the highest latency, and its load; empty where no latency is known."""
    mine = [link for link in known.links.get(name, ()) if link.get("latency_s")]
    if not mine:
        return ""
    worst = max(mine, key=lambda link: float(link["latency_s"]))
    ends = f"{worst['from']} → {worst['to']}"
    carries = of_text(worst["used_bps"], worst["bandwidth_bps"])
    return f", most of all {ends} ({carries}, {1000 * worst['latency_s']:.3g} ms one way)"
