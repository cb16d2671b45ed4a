"""How many microbatches are in flight: whatever number ends, the chosen ones hide the links and fit the memory."""

from dataclasses import replace

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.scheduler import Action, Device, Layer, Network, Order, Plan, PlanError, Workload, actions, plan, predict
from farflung.scheduler.timing.depth import in_flight
from farflung.scheduler.timing.estimate import Cut, Estimator
from farflung.scheduler.timing.simulate import simulate
from farflung.scheduler.timing.simulated import run
from farflung.scheduler.workloads.layers import stage_memory

ELEMENTS = 65_536


def taken(stages, microbatches, held, seconds, bandwidth=1e9, latency=0.0, schedule="1f1b"):
    """What each node did, in order, in the simulator: [p] lists of "F0", "B0", ..."""
    network = Network(
        [Device(f"d{i}") for i in range(stages)],
        numpy.full((stages, stages), latency),
        numpy.full((stages, stages), bandwidth),
    )
    times = numpy.array([seconds])
    bits = [[1.0] * (stages - 1)]
    row = [list(range(stages))]
    trace = simulate(network, row, times, 2 * times, bits, bits, [microbatches], schedule, record=True, in_flight=held)
    spans = sorted((span for span in trace.spans if span.kind in "FB"), key=lambda span: span.start)
    return [[span.label for span in spans if span.device == node] for node in range(stages)]


@settings(max_examples=150, deadline=None)
@given(data=st.data(), stages=st.integers(1, 6), microbatches=st.integers(1, 8))
def test_whatever_is_in_flight_every_microbatch_goes_there_and_back_in_one_order(data, stages, microbatches):
    held = data.draw(st.lists(st.integers(1, 12), min_size=stages, max_size=stages))
    seconds = data.draw(st.lists(st.sampled_from([0.01, 0.3, 1.0]), min_size=stages, max_size=stages))
    bandwidth, latency = data.draw(st.sampled_from([(1e9, 0.0), (1.0, 0.0), (0.2, 1.0), (1e9, 5.0)]))
    for most, order in zip(held, taken(stages, microbatches, [held], seconds, bandwidth, latency), strict=True):
        each = [str(number) for number in range(microbatches)]
        assert [label[1:] for label in order if label[0] == "F"] == each
        assert [label[1:] for label in order if label[0] == "B"] == each
        flying = numpy.cumsum([1 if label[0] == "F" else -1 for label in order])
        assert flying.min() >= 0 and flying.max() <= most


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("stages", range(1, 7))
def test_where_everything_is_in_time_the_order_is_the_list(stages, schedule):
    for microbatches in range(1, 9):
        wanted = [[str(action) for action in actions(schedule, at, stages, microbatches)] for at in range(stages)]
        assert taken(stages, microbatches, (), [1.0] * stages, schedule=schedule) == wanted


def test_an_order_waits_for_what_is_not_there_and_prefers_what_comes_back():
    order = Order("1f1b", 0, 2, 3, held=2)
    there = {Action("F", 0), Action("F", 1), Action("F", 2)}
    assert [str(order.next(there.__contains__)) for _ in range(3)] == ["F0", "F1", "None"]
    there.add(Action("B", 0))
    assert [str(order.next(there.__contains__)) for _ in range(3)] == ["B0", "F2", "None"]
    assert order.left == 2


def pipeline(microbatches=32, *, seconds=0.034, bits=32.0, rate=1e7, latency=0.01, memory=float("inf")):
    """(estimator, places, cut, shares) of 4 equal stages in a row."""
    layers = tuple(Layer(f"l{i}", 10, seconds / 3 * 1e12, ELEMENTS) for i in range(4))
    devices = [Device(f"d{i}", tflops=1.0, memory_bytes=memory) for i in range(4)]
    network = Network(devices, numpy.full((4, 4), latency), numpy.full((4, 4), rate))
    workload = Workload(layers, batch=microbatches, activation_bits=bits, gradient_bits=bits, stages=4, pipelines=1)
    cut = Cut(workload, tuple((at, at) for at in range(4)))
    return Estimator(network, workload), numpy.arange(4)[None], cut, (microbatches,)


@pytest.mark.parametrize(("bits", "gain"), [(32.0, 1.5), (16.0, 1.6), (5.0, 1.8)])
def test_links_that_take_as_long_as_a_stage_are_hidden(bits, gain):
    made = pipeline(bits=bits)
    plain = run(*made, "1f1b", depths=())[1]
    deep = run(*made, "1f1b")[1]
    _, period = made[0].rows(*made[1:3])
    assert plain > gain * deep
    assert deep < 1.4 * 32 * float(period[0])  # the rest is filling and draining


def test_next_door_plain_1f1b_is_deep_enough_and_other_schedules_have_no_depth():
    near = pipeline(rate=1e11, latency=1e-4)
    assert in_flight(*near) == ()
    far = pipeline()
    assert in_flight(*far) == ((11 + 3, 8 + 2, 5 + 1, 1),)
    estimator = Estimator(far[0].network, replace(far[0].workload, schedule="gpipe"))
    assert in_flight(estimator, *far[1:]) == ()
    assert in_flight(*pipeline(6)) == ((6, 6, 6, 1),)


@settings(max_examples=60, deadline=None)
@given(
    bits=st.floats(1, 64),
    seconds=st.floats(0.001, 1),
    latency=st.floats(0, 0.3),
    microbatches=st.integers(1, 40),
    room=st.integers(1, 30),
)
def test_what_is_in_flight_fits_the_memory_or_is_no_more_than_plain(bits, seconds, latency, microbatches, room):
    plain = (4, 3, 2, 1)
    workload = pipeline()[0].workload
    memory = stage_memory(workload, 1, 1, room)
    made = pipeline(microbatches, bits=bits, seconds=seconds, latency=latency, memory=memory)
    depths = in_flight(*made)
    assert depths == in_flight(*made)
    for at, held in enumerate(depths[0] if depths else plain):
        assert plain[at] <= held <= max(plain[at], microbatches)
        assert held == plain[at] or stage_memory(workload, at, at, held) <= memory


def test_a_plan_has_its_depths_and_its_prediction_is_of_them():
    estimator = pipeline()[0]
    made = plan(estimator.network, estimator.workload)
    assert made.in_flight == ((14, 10, 6, 1),) and made.in_flight_of(0, 1) == 10
    assert Plan.from_json(made.to_json()) == made
    plain = replace(made, in_flight=())
    assert plain.in_flight_of(0, 1) == 0 and not plain.same_placement(made)
    assert (
        predict(estimator.network, estimator.workload, plain).step_s
        > 1.5 * predict(estimator.network, estimator.workload, made).step_s
    )
    assert "the round trip behind stage 0" in predict(estimator.network, estimator.workload, plain).bottleneck
    assert plan(estimator.network, estimator.workload, current=made) is made
    assert plan(estimator.network, estimator.workload, current=plain).in_flight == made.in_flight


@pytest.mark.parametrize("wrong", [((1, 1),), ((1, 1, 1, 0),), ((1,) * 4, (1,) * 4)])
def test_depths_of_another_shape_are_refused(wrong):
    made = plan(pipeline()[0].network, pipeline()[0].workload)
    with pytest.raises(PlanError, match="in_flight needs a number"):
        replace(made, in_flight=wrong)
