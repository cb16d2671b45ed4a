"""Topology files: TOML of this project, and the cluster files of `farflung plan` (JSON or TOML)."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...cli import quantities
from .errors import WanError
from .topology import Change, Host, Link, Pair, Topology, change_values, link_values

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

READY = Path(__file__).parent / "topologies"
MOST_HOSTS = 250
_TOP = (
    "name",
    "about",
    "congestion",
    "tcp_memory",
    "coordinator",
    "seed",
    "defaults",
    "regions",
    "hosts",
    "links",
    "script",
)
_CLUSTER = ("devices_per_region", "latency_ms", "bandwidth_gbps", "devices")
_IGNORED = ("source", "note", "device_order")


def ready() -> list[str]:
    """The names of the topologies that come with farflung."""
    return sorted(path.stem for path in READY.glob("*.toml"))


def load(text: str, case: str | None = None) -> Topology:
    """A topology from a path, a ready name, or `FILE:CASE` for one case of a file of several."""
    path = Path(text)
    if not path.is_file() and ":" in text:
        path, case = Path(text.rsplit(":", 1)[0]), text.rsplit(":", 1)[1]
    if not path.is_file():
        if text in ready():
            path = READY / f"{text}.toml"
        else:
            near = difflib.get_close_matches(text, ready(), 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise WanError(f"no topology {text!r}", f"{hint}give a file, or one of {', '.join(ready())}")
    try:
        raw = path.read_bytes()
        data = json.loads(raw) if path.suffix == ".json" else tomllib.loads(raw.decode())
    except (ValueError, UnicodeDecodeError) as error:
        raise WanError(f"{path}: {error}", "correct the file") from error
    if case is not None:
        if not isinstance(data.get(case), dict):
            raise WanError(
                f"{path} has no case {case!r}",
                "its cases are " + ", ".join(k for k, v in data.items() if isinstance(v, dict)),
            )
        data = data[case]
    return parse(data, case or path.stem, str(path))


def parse(data: Mapping[str, Any], name: str, where: str) -> Topology:
    """A topology from the tables of a file. Errors name `where` and the key."""
    for key in data:
        if key not in _TOP + _CLUSTER + _IGNORED and not key.startswith("_"):
            near = difflib.get_close_matches(key, _TOP + _CLUSTER, 1)
            raise WanError(
                f"{where}: unknown key {key!r}",
                f"did you mean {near[0]}?" if near else "the keys are " + ", ".join(_TOP),
            )
    try:
        return _build(data, name, where)
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise WanError(
            f"{where}: {type(error).__name__}: {error}", "compare it with a ready topology: " + ", ".join(ready())
        ) from error


def _build(data: Mapping[str, Any], name: str, where: str) -> Topology:
    cluster = isinstance(data.get("regions"), list)
    regions: dict[str, dict[str, Any]] = {}
    if cluster:
        counts = data.get("devices_per_region") or {}
        counts = dict(zip(data["regions"], counts, strict=True)) if isinstance(counts, list) else counts
        regions = {r: {"hosts": int(counts[r])} if r in counts else {} for r in data["regions"]}
    else:
        regions = {r: dict(t) for r, t in dict(data.get("regions", {})).items()}
    listed = [dict(t) for key in ("devices", "hosts") if isinstance(data.get(key), list) for t in data[key]]
    hosts = _hosts(regions, listed, where)
    base = Link(**link_values(dict(data.get("defaults", {})), f"{where}: defaults"))
    links = _links(data, cluster, regions, hosts, base, where)
    bare = Topology(name=re.sub(r"[^A-Za-z0-9_-]+", "-", str(data.get("name", name))), hosts=hosts, links=links)
    given = "defaults" in data or cluster
    named = _named_links(bare, list(data.get("links", [])), where)
    missing = [p for p in bare.links if p not in named and not given and p not in _local(regions, hosts)]
    if missing:
        a, b = (hosts[i].name for i in missing[0])
        raise WanError(
            f"{where}: nothing says how {a} reaches {b}", f'add [[links]] between = ["{a}", "{b}"], or [defaults]'
        )
    congestion = data.get("congestion")
    reachable = [h.name for h in hosts if not h.nat]
    if not reachable:
        raise WanError(f"{where}: every host is behind NAT", "leave one host without nat for the coordinator")
    topology = dataclasses.replace(
        bare,
        links={**bare.links, **named},
        congestion=None if congestion is None else str(congestion),
        tcp_memory=None
        if data.get("tcp_memory") is None
        else quantities.size(data["tcp_memory"], f"{where}: tcp_memory"),
        coordinator=str(data.get("coordinator", reachable[0])),
        seed=int(data.get("seed", 1)),
    )
    chosen = topology.hosts[topology.index(topology.coordinator)]
    if chosen.nat:
        raise WanError(f"{where}: the coordinator {chosen.name} is behind NAT", f"use one of {', '.join(reachable)}")
    topology = dataclasses.replace(topology, coordinator=chosen.name)
    script = tuple(_change(topology, dict(c), f"{where}: script") for c in data.get("script", []))
    return dataclasses.replace(topology, script=script)


def _hosts(regions: dict[str, dict[str, Any]], named: list[dict[str, Any]], where: str) -> tuple[Host, ...]:
    hosts = []
    for region, table in regions.items():
        extra = set(table) - {"hosts", "uplink", "downlink", "nat", "local"}
        if extra:
            raise WanError(
                f"{where}: regions.{region}: unknown key {min(extra)!r}",
                "a region has hosts, uplink, downlink, nat, local",
            )
        count = int(table.get("hosts", 0 if any(t.get("region") == region for t in named) else 1))
        hosts += [_host(f"{region}/{i}", region, table, where) for i in range(count)]
    for table in named:
        region = str(table["region"])
        if region not in regions:
            raise WanError(f"{where}: host in unknown region {region!r}", "its regions are " + ", ".join(regions))
        merged = {**regions[region], **table}
        for given, ours in (("upload_gbps", "uplink"), ("download_gbps", "downlink")):
            if table.get(given) is not None:
                merged[ours] = f"{table[given]}gbit"
        number = sum(h.region == region for h in hosts)
        hosts.append(_host(str(table.get("name", f"{region}/{number}")), region, merged, where))
    names = [h.name for h in hosts]
    if not 1 <= len(hosts) <= MOST_HOSTS:
        raise WanError(f"{where}: {len(hosts)} hosts", f"a WAN in a box has 1 to {MOST_HOSTS}")
    if len(set(names)) < len(names):
        raise WanError(f"{where}: two hosts have one name", "give each of [[hosts]] its own name")
    return tuple(hosts)


def _host(name: str, region: str, table: Mapping[str, Any], where: str) -> Host:
    label = f"{where}: {name}"
    up, down = (
        quantities.rate(table.get("uplink"), f"{label} uplink"),
        quantities.rate(table.get("downlink"), f"{label} downlink"),
    )
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,63}", name):
        raise WanError(f"{where}: {name!r} is no host name", "use letters, digits, '.', '_', '-' and '/'")
    return Host(name, region, up, down, bool(table.get("nat", False)))


def _local(regions: Mapping[str, Mapping[str, Any]], hosts: tuple[Host, ...]) -> set[Pair]:
    every = range(len(hosts))
    return {
        (i, j)
        for i in every
        for j in every
        if i != j and hosts[i].region == hosts[j].region and "local" in regions[hosts[i].region]
    }


def _links(
    data: Mapping[str, Any], cluster: bool, regions: Mapping[str, Any], hosts: tuple[Host, ...], base: Link, where: str
) -> dict[Pair, Link]:
    links: dict[Pair, Link] = {}
    order = {region: i for i, region in enumerate(regions)}
    inside = _local(regions, hosts)
    for i, a in enumerate(hosts):
        for j, b in enumerate(hosts):
            if i == j:
                continue
            if cluster:
                delay = data["latency_ms"][order[a.region]][order[b.region]]
                rate = data["bandwidth_gbps"][order[a.region]][order[b.region]]
                if delay is None or rate is None:
                    raise WanError(
                        f"{where}: no latency or bandwidth from {a.region} to {b.region}",
                        "fill in the matrix: the diagonal is between two devices of one region",
                    )
                links[i, j] = dataclasses.replace(base, delay_ms=float(delay), rate=float(rate) * 1e9)
            elif (i, j) in inside:
                local = link_values(regions[a.region]["local"], f"{where}: regions.{a.region}.local")
                links[i, j] = dataclasses.replace(base, **local)
            else:
                links[i, j] = base
    return links


def _named_links(topology: Topology, tables: list[dict[str, Any]], where: str) -> dict[Pair, Link]:
    links: dict[Pair, Link] = {}
    for table in tables:
        rest = dict(table)
        if "between" in rest:
            a, b = rest.pop("between")
            text = f"{a}<->{b}"
        elif "from" in rest and "to" in rest:
            text = f"{rest.pop('from')}->{rest.pop('to')}"
        else:
            raise WanError(f"{where}: a link without ends", 'write between = ["a", "b"], or from = "a" and to = "b"')
        values = link_values(rest, f"{where}: links {text}")
        for pair in topology.pairs(text):
            links[pair] = dataclasses.replace(links.get(pair, topology.links[pair]), **values)
    return links


def _change(topology: Topology, table: dict[str, Any], where: str) -> Change:
    at = float(table.pop("at"))
    every = table.pop("every", None)
    actions = [key for key in ("set", "cut", "restore") if key in table]
    if len(actions) != 1 or at < 0 or (every is not None and float(every) <= 0):
        raise WanError(
            f"{where}: at {at}: one of set, cut, restore is needed, and times above 0", 'write cut = "a<->b"'
        )
    text = str(table.pop(actions[0]))
    topology.meant(text)
    values = change_values(table, text, where)
    if (actions[0] == "set") != bool(values):
        raise WanError(
            f"{where}: at {at}: {actions[0]} {text} with {sorted(values)}",
            "set needs values; cut and restore take none",
        )
    return Change(at, actions[0], text, values, None if every is None else float(every))


def to_json(topology: Topology) -> dict[str, Any]:
    """Plain data that `from_json` turns into the same topology."""
    data = dataclasses.asdict(topology)
    data["links"] = [[i, j, dataclasses.asdict(link)] for (i, j), link in topology.links.items()]
    return data


def from_json(data: Mapping[str, Any]) -> Topology:
    """The inverse of `to_json`."""
    hosts = tuple(Host(**h) for h in data["hosts"])
    links = {(i, j): Link(**link) for i, j, link in data["links"]}
    script = tuple(Change(**c) for c in data["script"])
    return Topology(**{**data, "hosts": hosts, "links": links, "script": script})


def prepare(
    topology: str | Topology,
    name: str | None = None,
    scale: float = 1.0,
    hosts_per_region: int | None = None,
    congestion: str | None = None,
) -> Topology:
    """A topology from a file or a ready name, fitted to this machine."""
    made = load(topology) if isinstance(topology, str) else topology
    if hosts_per_region is not None:
        if hosts_per_region < 1:
            raise WanError(f"--hosts-per-region {hosts_per_region}", "give a number from 1 up")
        made = made.only(hosts_per_region)
    if scale != 1.0:
        if not 0 < scale <= 1000:
            raise WanError(f"--scale {scale}", "give a factor above 0: 0.1 makes every rate a tenth")
        made = made.scaled(scale)
    if congestion:
        made = dataclasses.replace(made, congestion=congestion)
    if name:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", name):
            raise WanError(f"{name!r} is no name for a WAN", "use up to 40 letters, digits, '_' and '-'")
        made = dataclasses.replace(made, name=name)
    return made
