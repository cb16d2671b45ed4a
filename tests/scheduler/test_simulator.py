"""The simulator against what can be worked out by hand, and against the analytic estimate."""

import numpy
import pytest

from farflung.scheduler import Device, Layer, Network, PlanError, Workload
from farflung.scheduler.timing.estimate import Cut, Estimator
from farflung.scheduler.timing.simulate import simulate
from farflung.scheduler.timing.simulated import run
from farflung.scheduler.timing.transport import OVERLAPPED, Transport


def network(count, latency=0.0, bandwidth=1e15, **device):
    devices = [Device(f"d{i}", tflops=1.0, **device) for i in range(count)]
    return Network(devices, numpy.full((count, count), latency), numpy.full((count, count), bandwidth))


def go(net, rows, schedule, microbatches, bits=1.0, transport=OVERLAPPED, forward=1.0, backward=2.0, record=False):
    stages = len(rows[0])
    shape = (len(rows), stages)
    return simulate(
        net,
        rows,
        numpy.full(shape, forward),
        numpy.full(shape, backward),
        [[bits] * (stages - 1)] * len(rows),
        [[bits] * (stages - 1)] * len(rows),
        [microbatches] * len(rows),
        schedule,
        transport,
        record,
    )


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 4), (2, 1), (3, 5), (4, 8), (8, 2)])
def test_without_a_network_a_pipeline_takes_microbatches_plus_depth_slots(schedule, stages, microbatches):
    trace = go(network(stages), [list(range(stages))], schedule, microbatches)
    assert trace.seconds == pytest.approx(3.0 * (microbatches + stages - 1))
    assert trace.busy.tolist() == [3.0 * microbatches] * stages


def test_interleaving_divides_the_bubble():
    plain = go(network(4), [[0, 1, 2, 3]], "1f1b", 8)
    twice = go(network(4), [[0, 1, 2, 3] * 2], "interleaved", 8, forward=0.5, backward=1.0)
    assert plain.seconds - 24 == pytest.approx(9.0)
    assert twice.seconds - 24 == pytest.approx(4.5)


def test_a_message_takes_bits_over_bandwidth_plus_latency():
    trace = go(network(2, latency=0.25, bandwidth=2.0), [[0, 1]], "gpipe", 1, bits=1.0)
    assert trace.seconds == pytest.approx(1 + 0.5 + 0.25 + 1 + 2 + 0.5 + 0.25 + 2)


def test_the_slowest_hop_rules_and_not_the_sum_of_hops():
    # Ten microbatches over a hop of 5 s each way: about 10 forward and 10 backward messages, whatever the depth.
    short = go(network(2, bandwidth=1.0), [[0, 1]], "gpipe", 10, bits=5.0)
    deep = go(network(6, bandwidth=1.0), [list(range(6))], "gpipe", 10, bits=5.0)
    assert short.seconds == pytest.approx(100, rel=0.1)
    assert deep.seconds < 1.7 * short.seconds


def test_a_shared_uplink_is_shared():
    free = network(4, bandwidth=1.0)
    devices = [Device(f"d{i}", region="a" if i < 2 else "b", tflops=1.0) for i in range(4)]
    shared = Network(devices, free.latency, numpy.full((4, 4), 1.0), site_upload={"a": 1.0})
    rows = [[0, 2], [1, 3]]
    alone = go(free, rows, "gpipe", 8, bits=4.0)
    together = go(shared, rows, "gpipe", 8, bits=4.0)
    # Twice the forward time of the shared site; the way back is not limited.
    assert alone.seconds == pytest.approx(72, rel=0.1)
    assert together.seconds - alone.seconds == pytest.approx(32, rel=0.1)
    assert together.shared_busy["uplink of a"] == pytest.approx(64)


def test_a_coupled_transport_adds_what_overlapping_hides():
    net = network(4, bandwidth=1.0)
    rows = [[0, 1, 2, 3]]
    hidden = go(net, rows, "gpipe", 16, bits=0.9)
    coupled = go(net, rows, "gpipe", 16, bits=0.9, transport=Transport(4, True, 2, 3))
    assert coupled.seconds > 1.15 * hidden.seconds


def test_a_record_has_every_action_and_every_message():
    trace = go(network(3), [[0, 1, 2]], "1f1b", 4, record=True)
    assert sum(span.kind in "FB" for span in trace.spans) == 3 * 4 * 2
    assert sum(span.kind == "send" for span in trace.spans) == 2 * 4 * 2
    assert all(span.end >= span.start for span in trace.spans)


def test_a_link_that_is_not_there_is_named():
    net = network(2)
    cut = Network(net.devices, net.latency, numpy.array([[0.0, 0.0], [1.0, 0.0]]))
    with pytest.raises(PlanError, match="waits for ever"):
        go(cut, [[0, 1]], "1f1b", 2)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("bandwidth", [1e8, 1e9, 1e11])
def test_the_estimate_is_near_the_simulation(schedule, bandwidth):
    layers = tuple(Layer(f"l{i}", 10, 1e9 * (1 + i % 3), 100_000) for i in range(8))
    random = numpy.random.default_rng(1)
    devices = [Device(f"d{i}", tflops=float(random.uniform(0.5, 1.5))) for i in range(8)]
    net = Network(devices, random.uniform(1e-4, 5e-3, (8, 8)), bandwidth * random.uniform(0.3, 1.0, (8, 8)))
    workload = Workload(layers, batch=48, schedule=schedule)
    estimator = Estimator(net, workload)
    places = numpy.arange(8).reshape(2, 4)
    cut = Cut(workload, ((0, 1), (2, 3), (4, 5), (6, 7)))
    fixed, period = estimator.rows(places, cut)
    _, simulated = run(estimator, places, cut, (24, 24), schedule)
    assert float((fixed + 24 * period).max()) == pytest.approx(simulated, rel=0.12)


@pytest.mark.parametrize("share", [(1000, 1000), (1300, 430)])
def test_a_long_step_is_extended_by_its_period(share):
    layers = tuple(Layer(f"l{i}", 10, 1e9, 100_000) for i in range(4))
    devices = [Device(f"d{i}", tflops=1.0 if i < 4 else 0.33) for i in range(8)]
    net = Network(devices, numpy.full((8, 8), 0.001), numpy.full((8, 8), 1e9))
    workload = Workload(layers, batch=sum(share))
    estimator = Estimator(net, workload)
    places = numpy.arange(8).reshape(2, 4)
    cut = Cut(workload, ((0, 0), (1, 1), (2, 2), (3, 3)))
    _, quick = run(estimator, places, cut, share, "1f1b")
    _, whole = run(estimator, places, cut, share, "1f1b", whole=True)
    assert quick == pytest.approx(whole, rel=0.01)
