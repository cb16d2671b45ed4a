"""The exact `tc` commands for one host: HTB with a class for each destination, netem under it. Pure.

One class per destination holds netem (delay, jitter, loss, rate, and a limit that covers what is in flight and the
queue); everything else, ARP first of all, goes through a class without delay. Limits count packets, so segmentation
offload is off (`gso_max_segs 1`): netem would take 64 KB for one packet.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from .topology import FRAME, Link, Pair, Topology

DEVICE = "wan0"
_UNLIMITED = 40e9
_NO_RATE = 10e9  # netem keeps packets in order under jitter only where it has a rate


def limit(link: Link, narrowest: float | None) -> int:
    """Packets that netem must be able to hold: what is in flight on the link plus its queue."""
    bits = narrowest or link.rate or _NO_RATE
    return max(16, math.ceil(bits / 8 * (link.delay_ms + 4 * link.jitter_ms + link.queue_ms) / 1000 / FRAME))


def netem(link: Link, narrowest: float | None = None) -> str:
    """The parameters of one netem, all of them: `tc qdisc change` keeps nothing that is not repeated."""
    words = [f"netem limit {limit(link, narrowest)} delay {_time(link.delay_ms)}"]
    if link.jitter_ms:
        words.append(f"{_time(link.jitter_ms)} distribution normal")
    if link.cut:
        words.append("loss 100%")
    elif link.loss:
        words.append(f"loss {link.loss * 100:.6g}%")
    rate = link.rate or (_NO_RATE if link.jitter_ms else None)
    if rate:
        words.append(f"rate {_rate(rate)}")
    return " ".join(words)


def egress(topology: Topology, i: int) -> list[str]:
    """`tc -b` lines for host i's device."""
    lines = [f"qdisc add dev {DEVICE} root handle 1: htb default 2", *_classes("add", topology, i)]
    for j in _others(topology, i):
        match = f"protocol ip prio 1 u32 match ip dst {topology.address(j)}/32"
        lines += [_delay("add", topology, i, j), f"filter add dev {DEVICE} parent 1: {match} flowid 1:{_class_id(j)}"]
    return lines


def changed_egress(topology: Topology, i: int, hosts: Collection[int], pairs: Collection[Pair]) -> list[str]:
    """`tc -b` lines that make host i's live device what the topology says after these hosts and pairs have changed.

    A netem's limit covers what is in flight at the narrowest rate of its way, so an uplink or a downlink changes it."""
    lines = _classes("change", topology, i) if i in hosts else []
    touched = [j for j in _others(topology, i) if i in hosts or j in hosts or (i, j) in pairs]
    return lines + [_delay("change", topology, i, j) for j in touched]


def ingress(topology: Topology, i: int, port: str) -> list[str]:
    """`tc -b` lines for the bridge port towards host i: its downlink, where it has one."""
    return [] if topology.hosts[i].downlink is None else [downlink(topology, i, port)]


def downlink(topology: Topology, i: int, port: str) -> str:
    """The `tc -b` line that makes or changes the downlink of host i at its bridge port."""
    rate = topology.hosts[i].downlink or _UNLIMITED
    wait = max((link.queue_ms for (_, j), link in topology.links.items() if j == i), default=100.0)
    return f"qdisc replace dev {port} root tbf rate {_rate(rate)} burst {_burst(rate)} latency {_time(max(wait, 1.0))}"


def _others(topology: Topology, i: int) -> list[int]:
    return [j for j in range(len(topology.hosts)) if j != i]


def _classes(verb: str, topology: Topology, i: int) -> list[str]:
    """The HTB classes: the uplink, the default class, and a share of the uplink for each destination."""
    uplink = topology.hosts[i].uplink or _UNLIMITED
    others = _others(topology, i)
    share = _class(max(8000.0, uplink / max(1, len(others))), uplink)
    start = f"class {verb} dev {DEVICE} parent 1:"
    shared = [f"{start} classid 1:1 {_class(uplink, uplink)}", f"{start} classid 1:2 {_class(10e9, 10e9)}"]
    return [*shared, *(f"{start}1 classid 1:{_class_id(j)} {share}" for j in others)]


def _delay(verb: str, topology: Topology, i: int, j: int) -> str:
    """The netem from host i to host j."""
    return (
        f"qdisc {verb} dev {DEVICE} parent 1:{_class_id(j)} handle {_handle(j)}: "
        f"{netem(topology.links[i, j], topology.narrowest((i, j)))}"
    )


NFT_NAT = f"""add table ip wan
add chain ip wan input {{ type filter hook input priority 0 ; policy accept ; }}
add rule ip wan input iifname "{DEVICE}" ct state established,related accept
add rule ip wan input iifname "{DEVICE}" drop
"""
"""`nft -f` lines of a host that cannot be dialled: only answers come in."""

IPTABLES_NAT = (
    ("-A", "INPUT", "-i", DEVICE, "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT"),
    ("-A", "INPUT", "-i", DEVICE, "-j", "DROP"),
)
"""The same for kernels without nf_tables: the words of two `iptables` commands."""


def _class(rate: float, ceil: float) -> str:
    """HTB's own defaults for burst and quantum are wrong (0 bytes at 10 Gbit/s), so each class has them."""
    return f"htb rate {_rate(rate)} ceil {_rate(ceil)} burst {_burst(ceil)} cburst {_burst(ceil)} quantum 60000"


def _burst(rate: float) -> str:
    return f"{max(10 * FRAME, round(rate / 8 / 1000))}b"


def _rate(bits: float) -> str:
    return f"{round(bits)}bit"


def _time(ms: float) -> str:
    return f"{round(ms * 1000)}us"


def _class_id(j: int) -> str:
    return f"{j + 0x10:x}"


def _handle(j: int) -> str:
    return f"{j + 0x100:x}"
