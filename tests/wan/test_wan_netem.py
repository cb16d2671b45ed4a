"""The tc commands of the backend netem, word for word."""

# ruff: noqa: E501

from __future__ import annotations

from farflung.deploy.wan import files, netem
from farflung.deploy.wan.topology import Link

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
        "qdisc add dev wan0 parent 1:11 handle 101: netem limit 1132 delay 25000us 3000us distribution normal loss 0.1% rate 100000000bit",
        "filter add dev wan0 parent 1: protocol ip prio 1 u32 match ip dst 10.77.0.2/32 flowid 1:11",
        "class add dev wan0 parent 1:1 classid 1:12 htb rate 250000000bit ceil 500000000bit burst 62500b cburst 62500b quantum 60000",
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
        "qdisc add dev port2 root tbf rate 50000000bit burst 15140b latency 100000us"
    ]
    assert netem.ingress(topology, 0, "port0") == []


def test_a_change_repeats_every_parameter() -> None:
    topology = files.parse(TABLES, "n", "n")
    slow = Link(delay_ms=60, rate=20e6, queue_ms=50)
    assert (
        netem.change(topology, 0, 1, slow)
        == "qdisc change dev wan0 parent 1:11 handle 101: netem limit 182 delay 60000us rate 20000000bit"
    )
    gone = Link(delay_ms=60, rate=20e6, queue_ms=50, loss=0.01, cut=True)
    assert netem.change(topology, 0, 1, gone).endswith("delay 60000us loss 100% rate 20000000bit")


def test_jitter_without_a_rate_gets_one_so_that_nothing_is_reordered() -> None:
    assert netem.netem(Link(delay_ms=10, jitter_ms=1)).endswith("distribution normal rate 10000000000bit")
    assert "rate" not in netem.netem(Link(delay_ms=10))


def test_many_hosts_have_classes_of_their_own() -> None:
    topology = files.parse({"regions": {"a": {"hosts": 250}}, "defaults": {}}, "n", "n")
    lines = netem.egress(topology, 0)
    classes = [line.split("classid ")[1].split()[0] for line in lines if line.startswith("class")]
    assert len(set(classes)) == len(classes) == 251
    assert all(int(c.split(":")[1], 16) < 0x10000 for c in classes)
