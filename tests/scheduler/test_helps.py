"""What is said to help does help by as much: whoever makes the change gets the step that was promised."""

import re
from dataclasses import replace

import numpy
import pytest

from farflung.scheduler import CodecChoice, Device, Layer, Network, Plan, Workload, plan, predict
from farflung.scheduler.explaining.helps import changes

LAYERS = tuple(Layer(f"l{at}", 2_000_000, 4e11, 200_000) for at in range(4))
PLAN = Plan((("a", "b"), ("c", "d")), ((0, 1), (2, 3)), (4, 4))


def network(rate: float = 1e9, **of_a: float) -> Network:
    devices = [Device(name, tflops=10.0, **(of_a if name == "a" else {})) for name in "abcd"]
    return Network(devices, numpy.full((4, 4), 0.005), numpy.full((4, 4), rate))


CASES = [
    (network(), Workload(LAYERS, 8, update_bits=0.1)),
    (network().with_speed({"a": 1.0}), Workload(LAYERS, 8, update_bits=0.1)),
    (network(2e7), Workload(LAYERS, 8, update_bits=0.1, activation_bits=32.0, gradient_bits=32.0)),
    (network(upload=1e7), Workload(LAYERS, 8, update_bits=0.1, activation_bits=32.0, gradient_bits=32.0)),
    (network(download=1e7), Workload(LAYERS, 8, update_bits=0.1, activation_bits=32.0, gradient_bits=32.0)),
    (network(5e7), Workload(LAYERS, 8, update_bits=32.0)),
    (network(5e7), Workload(LAYERS, 8, update_bits=32.0, overlap=1)),
    (network(5e7), Workload(LAYERS, 8, update_bits=32.0, tied=True, mode="gradient")),
]


@pytest.mark.parametrize(("wan", "job"), CASES)
def test_the_change_gives_what_was_promised(wan: Network, job: Workload) -> None:
    told = predict(wan, job, PLAN)
    found = re.fullmatch(r"(.+): ([\d.e+-]+) s a step instead of ([\d.e+-]+) s", told.helps)
    if found is None:
        assert told.helps.startswith(("no single change", "fewer bits"))
        return
    assert float(found[3]) == pytest.approx(told.step_s, rel=0.01)
    pairs = [(one, two) for one in range(4) for two in range(4)]
    made = {words: changed for pair in pairs for words, *changed in changes(wan, job, pair, 2, 2)}
    other, changed = made[found[1]]
    assert predict(other, changed, PLAN).step_s == pytest.approx(float(found[2]), rel=0.02)
    assert float(found[2]) < told.step_s


def test_the_uplink_that_sets_the_pace_is_named() -> None:
    deep = replace(PLAN, in_flight=((4, 4), (4, 4)))
    told = predict(network(upload=1e7), Workload(LAYERS, 8, update_bits=0.1), deep)
    assert "uplink of a" in told.bottleneck and told.helps.startswith("twice the uplink of a (10 Mbit/s)")


def test_bits_of_codecs_by_link_count() -> None:
    job = Workload(LAYERS, 8, update_bits=0.1, codecs=(CodecChoice("int8", 8.0, 8.0), CodecChoice("none", 32.0, 32.0)))
    plain = replace(PLAN, codecs={"a>b": "none", "c>d": "int8"})
    told = predict(network(2e7), job, plain)
    assert "half the bits" in told.helps or "twice the bandwidth of a > b" in told.helps


def test_a_spare_is_told_what_a_step_takes_with_it() -> None:
    """Simulated: whoever puts it there gets that step."""
    wan = network().with_speed({"d": 0.5})
    job = Workload(LAYERS, 8, stages=1, pipelines=3, update_bits=0.1)
    made = plan(wan, job, time_limit=20)
    (why,) = made.spares.values()
    words = r"even in its best place \(stage 0 of pipeline (\d)\) a step would take (.+) s, not (.+) s"
    found = re.fullmatch(words, why)
    assert found is not None and list(made.spares) == ["d"]
    rows = list(made.pipelines)
    rows[int(found[1])] = ("d",)
    shares = [(a, b, 8 - a - b) for a in range(1, 7) for b in range(1, 8 - a)]
    swapped = (replace(made, pipelines=tuple(rows), microbatches=share, spares={}, publishers=()) for share in shares)
    assert min(predict(wan, job, one).step_s for one in swapped) == pytest.approx(float(found[2]), rel=0.02)
    assert predict(wan, job, made).step_s == pytest.approx(float(found[3]), rel=0.01)


def test_where_money_decides_a_spare_is_told_in_dollars() -> None:
    prices = {"a": 1.0, "b": 1.0, "c": 9.0, "d": 9.0}
    wan = network().with_devices([replace(one, price=prices[one.name]) for one in network().devices])
    made = plan(wan, Workload(LAYERS, 8, update_bits=0.1), objective="cost", time_limit=20)
    assert {"c", "d"} <= set(made.spares)
    for name, why in made.spares.items():
        if name == "b" and "would be no cheaper" in why:  # as dear as the one that trains
            continue
        found = re.search(r"would cost \$([\d.e-]+) at .+, not \$([\d.e-]+) at", why)
        assert found is not None and float(found[1]) >= float(found[2])
        assert name == "b" or float(found[1]) > float(found[2])
