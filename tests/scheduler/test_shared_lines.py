"""Rounds that overlap with steps use the uplinks that activations use."""

from dataclasses import replace

import numpy
import pytest

from farflung.scheduler import Device, Layer, Network, Plan, Workload, plan, predict
from farflung.scheduler.planning.room import Room
from farflung.scheduler.timing.estimate import Cut, Estimator
from farflung.scheduler.timing.lines import busy_seconds
from farflung.scheduler.workloads.codecs import bits_of
from farflung.scheduler.workloads.ladder import workload_fields

LAYERS = tuple(Layer(f"l{at}", 1_000_000, 1e9, 100_000) for at in range(4))
PLAN = Plan(pipelines=(("a", "b"), ("c", "d")), stages=((0, 1), (2, 3)), microbatches=(4, 4))


def network(**lines: float) -> Network:
    devices = [Device(name, **lines) for name in "abcd"]
    return Network(devices, numpy.full((4, 4), 0.001), numpy.full((4, 4), 1e9))


def test_a_step_is_no_shorter_than_what_an_uplink_carries_in_it() -> None:
    job = Workload(LAYERS, 8, update_bits=4.0, overlap=1, activation_bits=32.0, gradient_bits=32.0)
    told = predict(network(upload=3e6), job, PLAN)
    # Of each device: 4 microbatches of 3.2 Mbit, and in all-to-all or by two publishers 8 Mbit of updates.
    assert told.step_s >= (4 * 3.2e6 + 8e6) / 3e6 * 0.999
    assert told.step_s > max(told.compute_s, told.round_s) and "activations and rounds together" in told.bottleneck
    apart = predict(network(), job, PLAN)
    assert apart.step_s == pytest.approx(max(apart.compute_s, apart.round_s)) and "together" not in apart.bottleneck


def test_rounds_that_nobody_waits_for_at_once_take_a_part_of_the_line() -> None:
    job = Workload(LAYERS, 8, update_bits=4.0, overlap=4, every=4, activation_bits=32.0, gradient_bits=32.0)
    often = predict(network(upload=3e6), replace(job, every=1, overlap=1), PLAN)
    seldom = predict(network(upload=3e6), job, PLAN)
    assert seldom.step_s == pytest.approx((4 * 3.2e6 + 2e6) / 3e6, rel=0.1) and seldom.step_s < often.step_s


def job(**more: object) -> Workload:
    """Of each device: 2 M parameters, and in a step 4 microbatches of 3.2 Mbit one way."""
    fields = workload_fields("delta", "auto", "auto", 1, 1) | more
    return Workload(
        LAYERS, 8, pattern="auto", stages=2, pipelines=2, activation_bits=32.0, gradient_bits=32.0, **fields
    )


def test_compute_that_waits_for_activations_hides_no_round() -> None:
    """At 3 Mbit/s activations take an uplink for 4.27 s, nearly all of a step."""
    net = network(upload=3e6)
    made = plan(net, job(), current=PLAN)
    told = predict(net, job(), made)
    busy = 4 * 3.2e6 / 3e6
    assert made.overlap == 1 and 0 < told.compute_s - busy < 0.4 * told.compute_s
    assert told.step_s < 1.02 * told.compute_s, "what is chosen costs no time"
    # Four bits take 2 M x 4.1 / 3e6 = 2.7 s, which is 0.8 of a step and far more than its uplink is idle.
    four = predict(net, job(), replace(made, codecs={"updates": "int4"}))
    assert 2.7 < four.round_s < 0.8 * four.compute_s and four.step_s == pytest.approx(busy + four.round_s, rel=0.01)
    assert bits_of(made.codecs["updates"]) * 2e6 / 3e6 <= 0.8 * (told.compute_s - busy)
    assert "of compute that hide it while no activations take its lines" in made.why
    apart = plan(network(), job(), current=PLAN)  # the links between stages are not those between members
    told = predict(network(), job(), apart)
    assert bits_of(apart.codecs["updates"]) > 1.5 and "activations" not in apart.why
    assert told.compute_s - 4 * 3.2e6 / 1e9 < told.round_s <= 0.8 * told.compute_s


def test_the_seconds_of_activations_are_those_of_the_lines_that_a_round_takes() -> None:
    work = job(overlap=1)
    cut, places = Cut(work, ((0, 1), (2, 3))), numpy.array([[0, 1], [2, 3]])

    def busy(net: Network, rows: numpy.ndarray = places) -> list[float]:
        return busy_seconds(Estimator(net, work), rows, cut, (6, 2)[: len(rows)]).tolist()

    assert busy(network(upload=4e6)) == pytest.approx([6 * 3.2e6 / 4e6] * 2), "of the member with the larger share"
    assert busy(network(download=2e6)) == pytest.approx([6 * 3.2e6 / 2e6] * 2)
    assert busy(network()) == [0.0, 0.0] and busy(network(upload=4e6), places[:1]) == [0.0, 0.0]
    sites = [Device(name, region=region) for name, region in zip("abcd", "xyxx", strict=True)]
    net = Network(sites, numpy.full((4, 4), 0.001), numpy.full((4, 4), 1e9), site_upload={"x": 8e6})
    assert busy(net) == pytest.approx([0.0, 6 * 3.2e6 / 8e6]), "only the second group's round leaves the site"


def test_a_round_that_must_end_earlier_takes_more_of_a_line_s_step() -> None:
    fields = {"update_bits": 4.0, "activation_bits": 32.0, "gradient_bits": 32.0, "every": 4}
    late, soon = (
        predict(network(upload=3e6), Workload(LAYERS, 8, overlap=steps, **fields), PLAN).step_s for steps in (4, 1)
    )
    assert late == pytest.approx((4 * 3.2e6 + 2e6) / 3e6, rel=0.1)
    assert soon == pytest.approx((4 * 3.2e6 + 8e6) / 3e6, rel=0.01)


def test_a_group_s_room_is_what_its_own_lines_leave() -> None:
    room = Room("delta", 4, 10.0, (6.0, 0.0, 11.0))
    assert [room.hidden(2, group) for group in range(3)] == [8.0, 20.0, 0.0]
    assert room.fits(3.2, 1, 0) and not room.fits(3.3, 1, 0) and room.fits(8.0, 1, 1) and not room.fits(0.1, 4, 2)
    assert room.overlap(numpy.array([[3.2, 8.0, 0.0]])) == 1
    assert room.overlap(numpy.array([[3.3, 8.0, 0.0]])) == 2
    assert room.rungs(numpy.array([[4.0, 4.0], [3.0, 3.0]]), 1) == [1, 0]
