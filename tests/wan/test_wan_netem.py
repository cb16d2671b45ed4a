"""The tc commands of the backend netem, word for word."""

# ruff: noqa: E501

from __future__ import annotations

import dataclasses

from farflung.deploy.wan import files, netem
from farflung.deploy.wan.topology import Change, Link, Topology, apply, differences

TABLES = {
    "regions": {"a": {"uplink": "500mbit"}, "b": {}, "c": {"downlink": "50mbit"}},
    "defaults": {"delay_ms": 25, "jitter_ms": 3, "loss": 0.001, "rate": "100mbit"},
}


def test_the_commands_of_a_host() -> None:
    topology = files.parse(TABLES, "n", "n")
    assert netem.egress(topology, 0) == [
        "qdisc add dev wan0 root handle 1: htb default 2",
        "class add dev wan0 parent 1: classid 1:1 htb rate 500000000bit ceil 500000000bit burst 62500b cburst 62500b quantum 60000",
        "class add dev wan0 parent 1: classid 1:2 htb rate 10000000000bit ceil 10000000000bit burst 1250000b cburst 1250000b quantum 60000",
        "class add dev wan0 parent 1:1 classid 1:11 htb rate 250000000bit ceil 500000000bit burst 62500b cburst 62500b quantum 60000",
        "class add dev wan0 parent 1:1 classid 1:12 htb rate 250000000bit ceil 500000000bit burst 62500b cburst 62500b quantum 60000",
        "qdisc add dev wan0 parent 1:11 handle 101: netem limit 1132 delay 25000us 3000us distribution normal loss 0.1% rate 100000000bit",
        "filter add dev wan0 parent 1: protocol ip prio 1 u32 match ip dst 10.77.0.2/32 flowid 1:11",
        "qdisc add dev wan0 parent 1:12 handle 102: netem limit 566 delay 25000us 3000us distribution normal loss 0.1% rate 100000000bit",
        "filter add dev wan0 parent 1: protocol ip prio 1 u32 match ip dst 10.77.0.3/32 flowid 1:12",
    ]


def test_the_limit_covers_what_is_in_flight_and_the_queue() -> None:
    link = Link(delay_ms=100, rate=200e6, queue_ms=100)
    assert netem.limit(link, None) == 3303  # 1652 in flight and 1652 waiting: the default of 1000 would drop
    assert netem.limit(Link(rate=1e4, queue_ms=1), None) == 16


def test_a_downlink_is_a_tbf_at_the_bridge() -> None:
    topology = files.parse(TABLES, "n", "n")
    assert netem.ingress(topology, 2, "port2") == [
        "qdisc replace dev port2 root tbf rate 50000000bit burst 15140b latency 100000us"
    ]
    assert netem.ingress(topology, 0, "port0") == []


def changed(topology: Topology, i: int, change: Change) -> list[str]:
    now = apply(topology, topology, change)
    return netem.changed_egress(now, i, *differences(topology, now))


def test_a_change_repeats_every_parameter() -> None:
    topology = files.parse(TABLES, "n", "n")
    slow = {"delay_ms": 60, "rate": 20e6, "queue_ms": 50, "jitter_ms": 0, "loss": 0.0}
    start = "qdisc change dev wan0 parent 1:11 handle 101: netem limit 182 delay 60000us"
    assert changed(topology, 0, Change(0, "set", "a->b", slow)) == [f"{start} rate 20000000bit"]
    gone = dataclasses.replace(topology, links={**topology.links, (0, 1): Link(60, 0, 20e6, 0.01, 50)})
    assert changed(gone, 0, Change(0, "cut", "a->b")) == [f"{start} loss 100% rate 20000000bit"]
    assert changed(gone, 1, Change(0, "cut", "a->b")) == []


def test_a_changed_uplink_changes_its_classes_and_the_limits_behind_it() -> None:
    topology = files.parse(TABLES, "n", "n")
    uplink = Change(0, "set", "a", {"uplink": 20e6})
    lines = changed(topology, 0, uplink)
    assert lines == [
        "class change dev wan0 parent 1: classid 1:1 htb rate 20000000bit ceil 20000000bit burst 15140b cburst 15140b quantum 60000",
        "class change dev wan0 parent 1: classid 1:2 htb rate 10000000000bit ceil 10000000000bit burst 1250000b cburst 1250000b quantum 60000",
        "class change dev wan0 parent 1:1 classid 1:11 htb rate 10000000bit ceil 20000000bit burst 15140b cburst 15140b quantum 60000",
        "class change dev wan0 parent 1:1 classid 1:12 htb rate 10000000bit ceil 20000000bit burst 15140b cburst 15140b quantum 60000",
        "qdisc change dev wan0 parent 1:11 handle 101: netem limit 227 delay 25000us 3000us distribution normal loss 0.1% rate 100000000bit",
        "qdisc change dev wan0 parent 1:12 handle 102: netem limit 227 delay 25000us 3000us distribution normal loss 0.1% rate 100000000bit",
    ]
    assert [line.split()[4:6] for line in changed(topology, 1, uplink)] == [["parent", "1:10"]]  # b's netem to a


def test_a_downlink_that_is_changed_or_gone() -> None:
    topology = files.parse(TABLES, "n", "n")
    now = apply(topology, topology, Change(0, "set", "*", {"downlink": 8e6}))
    assert netem.downlink(now, 0, "port0").startswith("qdisc replace dev port0 root tbf rate 8000000bit ")
    now = apply(topology, now, Change(0, "restore", "*"))
    assert netem.downlink(now, 0, "port0").startswith("qdisc replace dev port0 root tbf rate 40000000000bit ")


def test_jitter_without_a_rate_gets_one_so_that_nothing_is_reordered() -> None:
    assert netem.netem(Link(delay_ms=10, jitter_ms=1)).endswith("distribution normal rate 10000000000bit")
    assert "rate" not in netem.netem(Link(delay_ms=10))


def test_many_hosts_have_classes_of_their_own() -> None:
    topology = files.parse({"regions": {"a": {"hosts": 250}}, "defaults": {}}, "n", "n")
    lines = netem.egress(topology, 0)
    classes = [line.split("classid ")[1].split()[0] for line in lines if line.startswith("class")]
    assert len(set(classes)) == len(classes) == 251
    assert all(int(c.split(":")[1], 16) < 0x10000 for c in classes)
