"""Rounds that overlap with steps use the uplinks that activations use."""

from dataclasses import replace

import numpy
import pytest

from farflung.scheduler import Device, Layer, Network, Plan, Workload, predict

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
