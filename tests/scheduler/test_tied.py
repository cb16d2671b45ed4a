"""A matrix that the first and the last stage share costs rounds between them."""

from dataclasses import replace

import numpy
import pytest

from farflung.scheduler import Device, Layer, Network, Plan, Workload, plan, predict
from farflung.scheduler.timing.estimate import Cut
from farflung.scheduler.timing.tied import stage_bits

SHARED, INSIDE = 4_000_000, 1_000_000
LAYERS = (Layer("embedding", SHARED, 1e9, 1000), Layer("block", INSIDE, 1e9, 1000), Layer("head", SHARED, 1e9, 1))
RATE = 1e8


def network(count: int) -> Network:
    size = (count, count)
    return Network([Device(name) for name in "abcd"[:count]], numpy.zeros(size), numpy.full(size, RATE))


def job(tied: bool, **more: float) -> Workload:
    return Workload(LAYERS, 8, tied=tied, update_bits=32.0, mode="gradient", pattern="auto", **more)  # type: ignore[arg-type]


def test_one_pipeline_exchanges_the_shared_matrix_and_nothing_else() -> None:
    made = Plan((("a", "b"),), ((0, 0), (1, 2)), (8,))
    apart, together = (predict(network(2), job(tied), made) for tied in (False, True))
    assert apart.round_s == 0
    assert together.round_s == pytest.approx(32 * SHARED / RATE)
    assert together.step_s - apart.step_s == pytest.approx(together.round_s)
    assert "what first and last stage share" in together.bottleneck and "a > b" in together.bottleneck


def test_two_pipelines_exchange_it_once_between_all_four() -> None:
    made = Plan((("a", "b"), ("c", "d")), ((0, 0), (1, 2)), (4, 4))
    told = predict(network(4), job(True), made)
    # all to all of two members for what the stages hold alone, publishers for what four nodes share
    assert told.round_s == pytest.approx((32 * INSIDE + 2 * 32 * SHARED * 3 / 4) / RATE)
    assert list(stage_bits(Cut(job(True), made.stages))) == [0.0, 32.0 * INSIDE]


def test_one_stage_shares_with_nobody_and_is_preferred_where_links_are_slow() -> None:
    alone = Plan((("a",), ("b",)), ((0, 2),), (4, 4))
    apart, together = (predict(network(2), job(tied), alone).round_s for tied in (False, True))
    assert apart - together == pytest.approx(32 * SHARED / RATE), "its only section has the matrix once"
    assert len(plan(network(2), replace(job(True), stages=None), time_limit=20).stages) == 1


def test_overlapped_rounds_of_it_take_their_part_of_the_line() -> None:
    made = Plan((("a", "b"),), ((0, 0), (1, 2)), (8,))
    told = predict(network(2), replace(job(True), mode="delta", overlap=1), made)
    assert told.step_s >= told.round_s
