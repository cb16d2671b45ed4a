"""The picture of a plan: who is where, what links carry, and what is red."""

import math
import re
import xml.dom.minidom

import numpy

from farflung.scheduler import Device, Network, Plan, predict
from farflung.scheduler.explaining.picture import RED, draw
from farflung.scheduler.explaining.places import centres
from farflung.scheduler.workloads.jobs import workload_of

JOB = {
    "model": {"family": "gpt2", "layers": 4, "width": 256, "heads": 4, "context": 128},
    "train": {"batch": 32, "microbatch": 4},
    "parallel": {"stages": 2, "pipelines": 2},
}


def test_devices_links_and_the_bottleneck_are_named_and_no_other_is_red() -> None:
    rate = numpy.full((12, 12), 1e9)
    rate[:6, 6:] = rate[6:, :6] = 2e7
    devices = [Device(f"n{at}", region="east" if at < 6 else "west") for at in range(12)]
    wan = Network(devices, numpy.full((12, 12), 0.01), rate)
    made = Plan((("n1", "n10"), ("n2", "n11")), ((0, 2), (3, 5)), (4, 4), {})
    told = predict(wan, workload_of(JOB), made)
    text = draw(wan, made, told)
    xml.dom.minidom.parseString(text)
    assert all(f">n{at}</text>" in text for at in range(12)) and ">east (6)<" in text
    assert "20 Mbit/s, 10 ms" in text and "stroke-dasharray" in text
    red = set(re.findall(rf'stroke="{RED}" stroke-width="3"><title>(n\d+):', text))
    assert red == {name for name in wan.names if name in re.findall(r"[\w/.-]+", told.bottleneck)}


def test_places_lie_as_on_a_map_and_apart() -> None:
    sizes = dict.fromkeys(["Tokyo", "Oregon", "Frankfurt", "Zurich", "sao-paulo"], 60.0)
    found, low = centres(sizes, 1100, 80)
    assert found["Oregon"][0] < found["sao-paulo"][0] < found["Zurich"][0] < found["Tokyo"][0]
    assert found["sao-paulo"][1] > found["Frankfurt"][1] and low == max(y for _, y in found.values()) + 60
    for names in (list(sizes), ["a", "b"], ["a"], [str(at) for at in range(9)]):
        found, _ = centres(dict.fromkeys(names, 50.0), 1100, 80)
        assert all(0 <= x <= 1100 and y >= 80 for x, y in found.values())
        assert all(math.dist(found[one], found[two]) > 95 for one in names for two in names if one < two)
