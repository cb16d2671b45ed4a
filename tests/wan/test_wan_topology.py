"""Topology files: what they mean, and what they are refused for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from farflung.cli import quantities
from farflung.deploy.wan import files
from farflung.deploy.wan.errors import WanError
from farflung.deploy.wan.topology import GOODPUT, Change, apply, change_values, differences, dns_name, timeline
from farflung.proto.errors import FarflungError

TWO = {
    "regions": {"a": {"hosts": 2, "local": {"delay_ms": 1}}, "b": {}},
    "links": [{"between": ["a", "b"], "delay_ms": 30, "rate": "10mbit"}],
}


def parse(data: dict) -> files.Topology:
    return files.parse(data, "test", "test.toml")


@pytest.mark.parametrize("name", ["bad-day", "lan", "two-datacentres", "us-regional", "volunteers", "worldwide"])
def test_the_ready_topologies_load_and_survive_json(name: str) -> None:
    topology = files.load(name)
    assert topology.name == name
    assert len(topology.links) == len(topology.hosts) * (len(topology.hosts) - 1)
    assert files.from_json(json.loads(json.dumps(files.to_json(topology)))) == topology


def test_the_published_numbers() -> None:
    us, world = files.load("us-regional"), files.load("worldwide")
    pair = us.index("Oregon/1"), us.index("Virginia/0")
    assert (us.links[pair].delay_ms, us.links[pair].rate) == (67, 1.15e9)
    assert len(world.hosts) == 8
    pair = world.index("London"), world.index("Seoul")
    assert (world.links[pair].delay_ms, world.links[pair].rate) == (238, 0.342e9)


def test_volunteers_are_asymmetric_and_behind_nat() -> None:
    topology = files.load("volunteers")
    uplinks = [h.uplink for h in topology.hosts if h.region != "cloud"]
    assert min(uplinks) == 20e6 and max(uplinks) == 200e6
    assert sum(h.nat for h in topology.hosts) == 2
    assert all(h.uplink < h.downlink for h in topology.hosts if h.region != "cloud")
    assert not topology.hosts[topology.index(topology.coordinator)].nat


def test_bad_day_has_loss_jitter_and_a_flapping_link() -> None:
    topology = files.load("bad-day")
    link = topology.links[topology.index("east/1"), topology.index("west/1")]
    assert link.loss > 0 and link.jitter_ms > 0
    flaps = [c for _, c in timeline(topology.script, 60) if c.target == "east/1<->west/1"]
    assert [c.action for c in flaps] == ["cut", "restore"] * 3


def test_regions_links_and_selectors() -> None:
    topology = parse(TWO)
    assert [h.name for h in topology.hosts] == ["a/0", "a/1", "b/0"]
    assert topology.links[0, 1].delay_ms == 1 and topology.links[0, 1].rate is None
    assert topology.links[2, 1].delay_ms == 30
    assert topology.pairs("a->b") == [(0, 2), (1, 2)]
    assert topology.pairs("a/0<->b") == [(0, 2), (2, 0)]
    assert topology.pairs("*->b/0") == [(0, 2), (1, 2)]
    assert topology.index("a-1") == 1 and topology.index("b") == 2
    with pytest.raises(WanError, match="region a has 2 hosts"):
        topology.index("a")


def test_directions_can_differ() -> None:
    data = {
        "regions": {"a": {}, "b": {}},
        "links": [{"between": ["a", "b"], "rtt_ms": 40}, {"from": "a", "to": "b", "rate": "1mbit", "loss": "2%"}],
    }
    topology = parse(data)
    assert (topology.links[0, 1].rate, topology.links[0, 1].loss) == (1e6, 0.02)
    assert topology.links[1, 0].rate is None
    assert topology.rtt_ms((0, 1)) == 40


def test_the_narrowest_of_uplink_link_and_downlink() -> None:
    topology = parse(
        {"regions": {"a": {"uplink": "20mbit"}, "b": {"downlink": "5mbit"}}, "defaults": {"rate": "100mbit"}}
    )
    assert topology.narrowest((0, 1)) == 5e6
    assert topology.narrowest((1, 0)) == 100e6


def test_a_cluster_file_of_plan(tmp_path: Path) -> None:
    cluster = {
        "regions": ["east", "west"],
        "devices_per_region": {"east": 2, "west": 1},
        "latency_ms": [[0.5, 30], [31, 0.5]],
        "bandwidth_gbps": [[10, 1], [0.5, 10]],
        "source": "somewhere",
    }
    path = tmp_path / "two.json"
    path.write_text(json.dumps({"first": cluster}))
    topology = files.load(f"{path}:first")
    assert [h.name for h in topology.hosts] == ["east/0", "east/1", "west/0"]
    assert topology.links[2, 0].delay_ms == 31 and topology.links[2, 0].rate == 0.5e9
    cluster["devices"] = [
        {"name": "big", "region": "west", "tflops": 100, "upload_gbps": 0.02},
        {"region": "east", "memory_gb": 24},
    ]
    topology = parse(cluster)
    assert {h.name: h.uplink for h in topology.hosts if h.name in ("big", "east/2")} == {"big": 20e6, "east/2": None}


def test_a_cluster_without_all_numbers_is_refused() -> None:
    cluster = {"regions": ["a", "b"], "latency_ms": [[None, 1], [1, None]], "bandwidth_gbps": [[None, 1], [1, None]]}
    assert len(parse(cluster).hosts) == 2
    with pytest.raises(WanError, match="no latency or bandwidth from a to a"):
        parse({**cluster, "devices_per_region": [2, 1]})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"region": {}}, "unknown key 'region'"),
        ({"links": []}, "nothing says how a/0 reaches b/0"),
        ({"links": [{"between": ["a", "c"], "delay_ms": 1}]}, "no host c"),
        ({"links": [{"between": ["a", "b"], "latency": 1}]}, "unknown key 'latency'"),
        ({"links": [{"between": ["a", "b"], "rate": "fast"}]}, "cannot read 'fast'"),
        ({"links": [{"between": ["a", "b"], "rate": 100}]}, "is no rate"),
        ({"links": [{"between": ["a", "b"], "loss": 2}]}, "no share of packets"),
        ({"links": [{"between": ["a", "b"], "delay_ms": 1e9}]}, "not between 0 and 60000"),
        ({"links": [{"delay_ms": 3}]}, "a link without ends"),
        ({"regions": {"a": {"nat": True}}, "links": []}, "every host is behind NAT"),
        ({"coordinator": "x"}, "no host x"),
        ({"script": [{"at": 1, "cut": "a<->b", "restore": "a<->b"}]}, "one of set, cut, restore"),
        ({"script": [{"at": 1, "set": "a<->b"}]}, "set needs values"),
        ({"script": [{"cut": "a<->b"}]}, "KeyError"),
        ({"script": [{"at": 1, "set": "a<->b", "uplink": "5mbit"}]}, "uplink belongs to a host"),
        ({"script": [{"at": 1, "set": "c", "uplink": "5mbit"}]}, "no host c"),
        ({"regions": {"a": {"hosts": 300}}}, "a WAN in a box has 1 to"),
        ({"regions": {"a": {"nats": True}, "b": {}}}, "unknown key 'nats'"),
        ({"regions": 3}, "TypeError"),
    ],
)
def test_what_is_refused_and_how(change: dict, words: str) -> None:
    with pytest.raises(FarflungError) as caught:
        parse({**TWO, **change})
    assert words in f"{caught.value.message} {caught.value.hint}"
    assert caught.value.hint
    assert caught.value.status == 2


def test_a_wrong_name_gets_the_nearest_right_one(tmp_path: Path) -> None:
    with pytest.raises(WanError, match="no topology") as caught:
        files.load("us-regionl")
    assert "did you mean us-regional?" in caught.value.hint
    broken = tmp_path / "broken.toml"
    broken.write_text("name = \n")
    with pytest.raises(WanError, match=r"broken\.toml"):
        files.load(str(broken))
    with pytest.raises(WanError, match="in quotes"):
        parse(TWO).pairs("a-")


def test_scaling_multiplies_rates_only() -> None:
    data = {
        **TWO,
        "script": [{"at": 1, "set": "a->b", "rate": "5mbit", "delay_ms": 7}, {"at": 2, "set": "b", "uplink": "2mbit"}],
    }
    topology = parse(data).scaled(0.1)
    assert topology.links[0, 2].rate == 1e6 and topology.links[0, 2].delay_ms == 30
    assert [c.values for c in topology.script] == [{"rate": 5e5, "delay_ms": 7}, {"uplink": 2e5}]


def test_fewer_hosts_of_each_region() -> None:
    topology = files.load("bad-day").only(1)
    assert [h.name for h in topology.hosts] == ["east/0", "west/0"]
    assert set(topology.links) == {(0, 1), (1, 0)}
    assert all("/1" not in c.target for c in topology.script) and len(topology.script) == 2


def test_changes_and_restoring_what_the_file_says() -> None:
    asked = parse(TWO)
    slow = apply(asked, asked, Change(0, "set", "a->b", change_values({"rate": "1mbit"}, "a->b", "")))
    assert slow.links[0, 2].rate == 1e6 and slow.links[2, 0].rate == 10e6
    gone = apply(asked, slow, Change(0, "cut", "a/0<->b"))
    assert differences(slow, gone) == ([], [(0, 2), (2, 0)])
    assert gone.links[0, 2].cut and gone.links[0, 2].rate == 1e6 and gone.links[2, 0].cut
    assert apply(asked, gone, Change(0, "restore", "*")) == asked
    assert differences(asked, apply(asked, asked, Change(0, "restore", "*->*"))) == ([], [])


def test_a_host_is_changed_with_all_its_links() -> None:
    asked = parse(TWO)
    values = change_values({"uplink": "5mbit", "downlink": "unlimited", "loss": "1%"}, "b", "")
    now = apply(asked, asked, Change(0, "set", "b", values))
    assert (now.hosts[2].uplink, now.hosts[2].downlink, now.narrowest((2, 0))) == (5e6, None, 5e6)
    assert {p for p, link in now.links.items() if link.loss == 0.01} == {(0, 2), (1, 2), (2, 0), (2, 1)}
    assert differences(asked, now) == ([2], [(0, 2), (1, 2), (2, 0), (2, 1)])
    region = apply(asked, now, Change(0, "set", "a", change_values({"uplink": "2mbit"}, "a", "")))
    assert [h.uplink for h in region.hosts] == [2e6, 2e6, 5e6] and region.links == now.links
    off = apply(asked, region, Change(0, "cut", "a/1"))
    assert [p for p, link in off.links.items() if link.cut] == [(0, 1), (1, 0), (1, 2), (2, 1)]
    back = apply(asked, off, Change(0, "restore", "b"))
    assert back.hosts[2] == asked.hosts[2] and [h.uplink for h in back.hosts] == [2e6, 2e6, None]
    assert back.links[2, 0] == asked.links[2, 0] and back.links[0, 1].cut
    for target in ("a->b", "a/0<->b"):
        with pytest.raises(WanError, match="uplink belongs to a host") as caught:
            change_values({"uplink": "5mbit"}, target, "x")
        assert "name the host alone" in caught.value.hint
    with pytest.raises(WanError, match="names no link"):
        asked.meant("a-")


def test_a_timeline_repeats_in_order() -> None:
    script = (
        Change(1, "cut", "a->b", every=10),
        Change(3, "restore", "a->b", every=10),
        Change(3, "set", "a->b", {"loss": 0.1}),
    )
    moments = [(at, c.action) for at, c in timeline(script, 14)]
    assert moments == [(1, "cut"), (3, "restore"), (3, "set"), (11, "cut"), (13, "restore")]


def test_units() -> None:
    assert quantities.rate("1.12 gbit") == 1.12e9 and quantities.rate("unlimited") is None
    assert (
        quantities.milliseconds("0.3s") == 300
        and quantities.milliseconds("250us") == 0.25
        and quantities.milliseconds(25) == 25
    )
    assert quantities.share("0.5%") == 0.005 and quantities.share(0.01) == 0.01
    assert quantities.size("64MiB") == 64 << 20 and quantities.size("16MB") == 16_000_000
    assert round(GOODPUT, 3) == 0.956
    assert dns_name("Oregon/0") == "oregon-0"
