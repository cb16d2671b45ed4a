"""Cluster files load, and every mistake in one is one clear sentence."""

import json

import numpy
import pytest

from farflung.scheduler import Device, Link, Network, PlanError

GOOD = {
    "regions": ["east", "west"],
    "devices_per_region": {"east": 2, "west": 1},
    "latency_ms": [[1, 40], [50, None]],
    "bandwidth_gbps": [[10, 0.5], [1.0, None]],
}


def write(folder, content):
    file = folder / "cluster.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_json_and_toml_give_the_same_directed_network(tmp_path):
    network = Network.load(write(tmp_path, GOOD))
    assert network.names == ("east/0", "east/1", "west/0")
    assert network.link("east/0", "west/0") == Link(0.04, 0.5e9)
    assert network.link("west/0", "east/0") == Link(0.05, 1e9)
    toml = tmp_path / "cluster.toml"
    toml.write_text(
        'regions = ["east", "west"]\nlatency_ms = [[1, 40], [50, 0]]\nbandwidth_gbps = [[10, 0.5], [1.0, 0]]\n'
        "[devices_per_region]\neast = 2\nwest = 1\n"
    )
    assert numpy.array_equal(Network.load(toml).bandwidth, network.bandwidth)


def test_devices_have_names_speeds_limits_and_prices():
    listed = [
        {"name": "big", "region": "east", "tflops": 100, "memory_gb": 80, "price_per_hour": 2.5},
        {"region": "west", "upload_gbps": 0.1},
    ]
    network = Network.from_mapping(GOOD | {"devices": listed})
    assert network.names == ("big", "east/1", "west/1")
    assert network.devices[0] == Device("big", "east", 100, 80e9, price=2.5)
    assert network.rate[2, 0] == 0.1e9
    assert set(network.graph["big"]["west/1"]) == {"latency", "bandwidth", "confidence", "age"}


def test_several_clusters_in_one_file(tmp_path):
    file = write(tmp_path, {"about": "two", "one": GOOD, "two": GOOD | {"devices_per_region": {"east": 5}}})
    assert len(Network.load(f"{file}#two")) == len(Network.load(f"{file}:two")) == 5
    with pytest.raises(PlanError, match=r"several clusters: write .*:one"):
        Network.load(file)
    with pytest.raises(PlanError, match="no cluster 'three'"):
        Network.load(f"{file}#three")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"latency_ms": [[1, 40]]}, "latency_ms must be 2 x 2"),
        ({"bandwidth_gbps": [[1, 2, 3], [1, 2]]}, "bandwidth_gbps must be 2 x 2"),
        (
            {"latency_ms": [[1, -40], [50, 1]]},
            "latency_ms from 'east' to 'west' must be a number of at least 0, not -40",
        ),
        ({"bandwidth_gbps": [[None, 1], [1, 1]]}, "bandwidth_gbps from 'east' to 'east'"),
        ({"bandwidth_gbps": [["fast", 1], [1, 1]]}, "not 'fast'"),
        ({"regions": []}, "regions must be a list of names"),
        ({"regions": ["east", "east"]}, "named twice"),
        ({"devices_per_region": {"north": 1}}, "unknown region 'north'"),
        ({"devices_per_region": {"east": 1.5}}, "must be a whole number, not 1.5"),
        ({"devices_per_region": {}}, "there is no device"),
        ({"devices": [{"region": "moon"}]}, "unknown region 'moon'"),
        ({"devices": [{"region": "east", "speed": 3}]}, "unknown key 'speed'"),
        ({"devices": [{"region": "east", "tflops": 0}]}, "tflops must be above 0"),
        ({"devices": [{"region": "east", "memory_gb": -1}]}, "memory_gb of device 0 must be"),
        ({"devices": [{"name": "a", "region": "east"}, {"name": "a", "region": "east"}]}, "two devices are called 'a'"),
        ({"devices": 7}, "devices says 7: devices_per_region adds up to 3"),
        ({"devices": [{"region": "west"}, {"region": "west"}]}, "2 devices are listed in 'west'"),
        ({"site_upload_gbps": {"east": 0}}, "site_upload_gbps of 'east'"),
        ({"site_upload_gbps": [1, 2]}, 'site_upload_gbps must be a table, {"east": 1}, not [1, 2]'),
        ({"site_download_gbps": {"east": 1e300}}, "site_download_gbps of 'east'"),
        ({"bandwidth_gbps": [[1, 1e300], [1, 1]]}, "must be a number of at least 0 and at most 1e+09, not 1e+300"),
        ({"devices": [{"region": "east", "tflops": 1e300}]}, "tflops of device 0 must be a number of at least 0 and"),
        ({"bandwidth_gbps": [[10, 0], [1, None]]}, "falls into 2 parts with no link between them both ways"),
    ],
)
def test_mistakes_in_a_cluster(change, says):
    with pytest.raises(PlanError) as caught:
        Network.from_mapping(GOOD | change, "cluster.json")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "says"), [("{", "is not JSON"), ("[1]", "a cluster is a table")])
def test_files_that_are_no_cluster(tmp_path, text, says):
    with pytest.raises(PlanError, match=says):
        Network.load(write(tmp_path, text))


def test_a_missing_file(tmp_path):
    with pytest.raises(PlanError, match="can't read"):
        Network.load(tmp_path / "nowhere.json")


def test_live_measurements_take_the_other_direction_and_then_the_default():
    devices = [Device("a"), Device("b"), Device("c")]
    network = Network.measured(devices, {("a", "b"): 0.01}, {("a", "b"): 2e8, ("gone", "a"): 1.0})
    assert network.link("b", "a") == Link(0.01, 2e8, 1.0)
    assert network.link("a", "c") == Link(0.05, 100e6, 0.0)


def test_a_link_that_was_not_measured_is_no_better_than_the_worst_of_its_ends():
    """As 100 Mbit/s a plan preferred it to everything that was known: predicted 1.56 s, measured 10.2."""
    devices = [Device("a"), Device("b"), Device("c"), Device("d")]
    slow = {("a", "b"): 2e6, ("b", "c"): 5e6, ("c", "d"): 8e9, ("a", "d"): 0.0}
    network = Network.measured(devices, dict.fromkeys(slow, 0.01), slow)
    assert network.link("a", "c").bandwidth == 2e6 and network.link("b", "d").bandwidth == 2e6
    assert network.link("a", "d").bandwidth == 0 and network.link("a", "c").confidence == 0


def test_matrices_are_checked():
    devices = [Device("a"), Device("b")]
    square = numpy.ones((2, 2))
    with pytest.raises(PlanError, match="2 x 2"):
        Network(devices, numpy.ones((2, 3)), square)
    with pytest.raises(PlanError, match="negative or undefined"):
        Network(devices, -square, square)
    with pytest.raises(PlanError, match="at least one device"):
        Network([], numpy.ones((0, 0)), numpy.ones((0, 0)))
    with pytest.raises(PlanError, match="two devices are called"):
        Network([Device("a"), Device("a")], square, square)
