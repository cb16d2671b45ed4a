"""What a WAN looks like: hosts, one link for each ordered pair of hosts, and timed changes. Pure data.

Delays are one way. A host without an uplink or downlink is limited only by its links.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...cli import quantities
from .errors import WanError

Pair = tuple[int, int]
MTU = 1500
FRAME = MTU + 14  # what one full packet costs on the wire: tc counts the Ethernet header too
GOODPUT = (MTU - 52) / FRAME  # the best TCP payload share of a rate: 52 = IPv4 and TCP headers with timestamps


@dataclasses.dataclass(frozen=True)
class Link:
    """One direction of one pair. `rate` in bit/s (None: no limit), `loss` a fraction, the rest in milliseconds."""

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    rate: float | None = None
    loss: float = 0.0
    queue_ms: float = 100.0
    cut: bool = False

    def __post_init__(self) -> None:
        numbers = {"delay_ms": self.delay_ms, "jitter_ms": self.jitter_ms, "queue_ms": self.queue_ms}
        for key, value in numbers.items():
            if not (math.isfinite(value) and 0 <= value <= 60_000):
                raise WanError(f"{key} = {value} is not between 0 and 60000 ms", "write a delay in milliseconds")
        if self.rate is not None and not (math.isfinite(self.rate) and self.rate >= 1000):
            raise WanError(
                f"rate = {self.rate} bit/s is below 1 kbit/s", 'write a rate like "20mbit"; `wan cut` cuts a link'
            )


@dataclasses.dataclass(frozen=True)
class Host:
    """One machine. `nat`: it can dial out and cannot be dialled."""

    name: str
    region: str
    uplink: float | None = None
    downlink: float | None = None
    nat: bool = False


@dataclasses.dataclass(frozen=True)
class Change:
    """At `at` seconds (and every `every` seconds after): set, cut or restore what `target` means (`Topology.meant`)."""

    at: float
    action: str
    target: str
    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    every: float | None = None


@dataclasses.dataclass(frozen=True)
class Topology:
    """A whole WAN. `links` has every ordered pair of different hosts."""

    name: str
    hosts: tuple[Host, ...]
    links: Mapping[Pair, Link]
    congestion: str | None = None
    tcp_memory: int | None = None
    coordinator: str = ""
    script: tuple[Change, ...] = ()
    seed: int = 1

    def index(self, name: str) -> int:
        """The number of a host: by name, by name with '-' for '/', or by a region that has one host."""
        for i, host in enumerate(self.hosts):
            if name in (host.name, dns_name(host.name)):
                return i
        inside = [i for i, host in enumerate(self.hosts) if host.region == name]
        if len(inside) == 1:
            return inside[0]
        why = f"region {name} has {len(inside)} hosts" if inside else f"no host {name}"
        raise WanError(f"{why} in {self.name}", "its hosts are " + ", ".join(h.name for h in self.hosts))

    def select(self, name: str) -> list[int]:
        """The hosts that a word names: one host, all hosts of a region, or all hosts for `*`."""
        if name == "*":
            return list(range(len(self.hosts)))
        inside = [i for i, host in enumerate(self.hosts) if host.region == name]
        return inside or [self.index(name)]

    def pairs(self, text: str) -> list[Pair]:
        """The pairs that `a->b` or `a<->b` means, where a and b are hosts, regions or `*`."""
        match = re.fullmatch(r"\s*(\S+?)\s*(<->|->)\s*(\S+)\s*", text)
        if match is None:
            raise WanError(
                f"{text!r} names no link", "write 'a->b' or 'a<->b', in quotes: the shell takes > for itself"
            )
        sources, targets = self.select(match[1]), self.select(match[3])
        found = {(i, j) for i in sources for j in targets if i != j}
        if match[2] == "<->":
            found |= {(j, i) for i, j in found}
        if not found:
            raise WanError(
                f"{text!r} has no two different hosts", "its hosts are " + ", ".join(h.name for h in self.hosts)
            )
        return sorted(found)

    def meant(self, text: str) -> tuple[list[int], list[Pair]]:
        """The target of a change, as (hosts, pairs). `a->b` and `a<->b` are links; a word alone (a host, a
        region or `*`) is those hosts and every link from or to them."""
        if ">" in text or text.endswith("-"):  # a-: the rest of an unquoted a->b
            return [], self.pairs(text)
        hosts = self.select(text)
        return hosts, sorted(pair for pair in self.links if pair[0] in hosts or pair[1] in hosts)

    def address(self, i: int) -> str:
        """The IPv4 address of host i."""
        return f"10.77.{(i + 1) >> 8}.{(i + 1) & 255}"

    def narrowest(self, pair: Pair) -> float | None:
        """Bit/s that one flow alone can have on a pair: the link, the sender's uplink, the receiver's downlink."""
        rates = [self.links[pair].rate, self.hosts[pair[0]].uplink, self.hosts[pair[1]].downlink]
        known = [r for r in rates if r is not None]
        return min(known) if known else None

    def rtt_ms(self, pair: Pair) -> float:
        """The round trip of an idle pair."""
        return self.links[pair].delay_ms + self.links[pair[::-1]].delay_ms

    def smallest_delay_ms(self) -> float:
        """The smallest one-way delay, which decides how late an emulator may be."""
        return min((link.delay_ms for link in self.links.values()), default=0.0)

    def scaled(self, factor: float) -> Topology:
        """The same WAN with every rate multiplied by `factor` (delays stay: light doesn't wait for slow computers)."""

        def times(bits: float | None) -> float | None:
            return None if bits is None else bits * factor

        hosts = tuple(dataclasses.replace(h, uplink=times(h.uplink), downlink=times(h.downlink)) for h in self.hosts)
        links = {p: dataclasses.replace(link, rate=times(link.rate)) for p, link in self.links.items()}
        script = tuple(
            dataclasses.replace(c, values={k: times(v) if k in RATES else v for k, v in c.values.items()})
            for c in self.script
        )
        return dataclasses.replace(self, hosts=hosts, links=links, script=script)

    def only(self, per_region: int) -> Topology:
        """The same WAN with at most `per_region` hosts of each region; timed changes of hosts that went are dropped."""
        taken: dict[str, int] = {}
        keep = []
        for i, host in enumerate(self.hosts):
            taken[host.region] = taken.get(host.region, 0) + 1
            if taken[host.region] <= per_region:
                keep.append(i)
        hosts = tuple(self.hosts[i] for i in keep)
        number = {old: new for new, old in enumerate(keep)}
        links = {(number[i], number[j]): v for (i, j), v in self.links.items() if i in number and j in number}
        names = [h.name for h in hosts]
        coordinator = self.coordinator if self.coordinator in names else names[0]
        cut = dataclasses.replace(self, hosts=hosts, links=links, coordinator=coordinator, script=())
        return dataclasses.replace(cut, script=tuple(c for c in self.script if _fits(cut, c)))


def _fits(topology: Topology, change: Change) -> bool:
    try:
        topology.meant(change.target)
    except WanError:
        return False
    return True


def dns_name(host: str) -> str:
    """A host's name as a file, a namespace or a resolver may have it: `Oregon/0` is `oregon-0`."""
    return re.sub(r"[^a-z0-9-]+", "-", host.lower()).strip("-")


LINK_KEYS = ("delay_ms", "rtt_ms", "delay", "jitter_ms", "jitter", "rate", "loss", "queue_ms", "queue")


HOST_KEYS = ("uplink", "downlink")
RATES = ("rate", *HOST_KEYS)


def change_values(values: Mapping[str, Any], target: str, where: str) -> dict[str, Any]:
    """The fields of Host and Link that a change sets; uplink and downlink only where its target is hosts."""
    hosts = {key: quantities.rate(value, f"{where}: {key}") for key, value in values.items() if key in HOST_KEYS}
    if hosts and ">" in target:
        raise WanError(
            f"{where}: {min(hosts)} belongs to a host and not to the link {target}",
            "name the host alone, like: farflung wan set TOPOLOGY HOST uplink=20mbit; a link has rate",
        )
    return {**hosts, **link_values({k: v for k, v in values.items() if k not in HOST_KEYS}, where)}


def link_values(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields of Link that a table or `key=value` words set; refuses unknown keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        label = f"{where}: {key}"
        if key in ("delay_ms", "delay"):
            found["delay_ms"] = quantities.milliseconds(value, label)
        elif key == "rtt_ms":
            found["delay_ms"] = quantities.milliseconds(value, label) / 2
        elif key in ("jitter_ms", "jitter"):
            found["jitter_ms"] = quantities.milliseconds(value, label)
        elif key in ("queue_ms", "queue"):
            found["queue_ms"] = quantities.milliseconds(value, label)
        elif key == "rate":
            found["rate"] = quantities.rate(value, label)
        elif key == "loss":
            found["loss"] = quantities.share(value, label)
        else:
            raise WanError(
                f"{where}: unknown key {key!r}", "a link has " + ", ".join(LINK_KEYS) + "; a host also uplink, downlink"
            )
    return found


def apply(asked: Topology, now: Topology, change: Change) -> Topology:
    """The topology `now` after a change. `restore` takes the values from `asked`, the original topology."""
    hosts, links = list(now.hosts), dict(now.links)
    chosen, pairs = asked.meant(change.target)
    for_hosts = {key: value for key, value in change.values.items() if key in HOST_KEYS}
    for_links = {key: value for key, value in change.values.items() if key not in HOST_KEYS}
    for i in chosen:
        hosts[i] = asked.hosts[i] if change.action == "restore" else dataclasses.replace(hosts[i], **for_hosts)
    for pair in pairs:
        if change.action == "restore":
            links[pair] = asked.links[pair]
        elif change.action == "cut":
            links[pair] = dataclasses.replace(links[pair], cut=True)
        else:
            links[pair] = dataclasses.replace(links[pair], **for_links)
    return dataclasses.replace(now, hosts=tuple(hosts), links=links)


def differences(before: Topology, after: Topology) -> tuple[list[int], list[Pair]]:
    """The hosts and the pairs that differ between two states of one WAN."""
    hosts = [i for i, host in enumerate(after.hosts) if host != before.hosts[i]]
    return hosts, [pair for pair, link in after.links.items() if link != before.links[pair]]


def timeline(script: tuple[Change, ...], until: float) -> Iterator[tuple[float, Change]]:
    """Every occurrence of a script's changes up to `until` seconds in time order, at equal times as in the file."""
    moments = [(change.at, number) for number, change in enumerate(script)]
    heapq.heapify(moments)
    while moments and moments[0][0] <= until:
        at, number = heapq.heappop(moments)
        yield at, script[number]
        every = script[number].every
        if every is not None:
            heapq.heappush(moments, (at + every, number))
