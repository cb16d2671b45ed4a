"""Unequal speed, memory, links, prices: what the planner makes of them."""

from dataclasses import replace

import numpy
import pytest

from farflung.scheduler import CodecChoice, Device, Layer, Network, Plan, PlanError, Workload, plan, predict
from farflung.scheduler.timing.rounds import per_bit_sent, publisher_fractions, round_seconds
from farflung.scheduler.workloads.layers import balance, shares, stage_memory

LAYERS = tuple(Layer(f"block {i}", 1_000_000, 1e10, 100_000) for i in range(8))


def workload(**changes):
    return Workload(**({"layers": LAYERS, "batch": 32, "update_bits": 8.0, "overlap": 1} | changes))


def uniform(devices, latency=0.001, bandwidth=1e9):
    count = len(devices)
    return Network(devices, numpy.full((count, count), latency), numpy.full((count, count), bandwidth))


def test_layers_follow_speed_and_memory():
    job = workload()
    assert balance(job, [3.0, 1.0], [numpy.inf] * 2, [1, 1]) == ((0, 5), (6, 7))
    room = stage_memory(job, 0, 2, 1)
    assert balance(job, [3.0, 1.0], [room, numpy.inf], [1, 1]) == ((0, 2), (3, 7))
    assert balance(job, [1.0, 1.0], [1.0, 1.0], [1, 1]) is None


def test_more_microbatches_in_flight_need_more_memory_and_recompute_less():
    job = workload()
    assert stage_memory(job, 0, 3, 4) > stage_memory(job, 0, 3, 1)
    assert stage_memory(workload(recompute=True), 2, 5, 4) < stage_memory(job, 2, 5, 4)


def test_a_refusal_for_want_of_memory_says_what_would_fit():
    """GPipe keeps every microbatch of a step, 1F1B as many as there are stages."""
    gpipe = workload(schedule="gpipe", stages=2, pipelines=1, overlap=0)
    room = stage_memory(gpipe, 0, 3, 2)
    devices = [Device(name, memory_bytes=room) for name in "ab"]
    with pytest.raises(PlanError, match='devices that joined; with schedule = "1f1b" it would fit'):
        plan(uniform(devices), gpipe)
    assert plan(uniform(devices), workload(stages=2, pipelines=1, overlap=0)).pipelines


@pytest.mark.parametrize(
    ("changes", "room", "says"),
    [
        (
            {},
            lambda job: stage_memory(replace(job, recompute=True), 0, 3, 2),
            "; with train.recompute = true it would fit",
        ),
        (
            {"movable_bytes": 8.0, "recompute": True},
            lambda job: stage_memory(replace(job, optimizer_bytes=8.0), 0, 3, 2),
            '; with train.offload = "moments" it would fit',
        ),
        (
            {"movable_bytes": 8.0},
            lambda job: stage_memory(replace(job, optimizer_bytes=8.0, recompute=True), 0, 3, 2),
            '; with train.recompute = true and train.offload = "moments" it would fit',
        ),
        ({"movable_bytes": 8.0}, lambda job: stage_memory(replace(job, optimizer_bytes=1.0), 0, 3, 1) / 2, ""),
    ],
)
def test_a_refusal_names_what_takes_less_memory(changes, room, says):
    job = workload(stages=2, pipelines=1, overlap=0, **changes)
    devices = [Device(name, memory_bytes=room(job) * 1.001) for name in "ab"]
    with pytest.raises(PlanError) as caught:
        plan(uniform(devices), job)
    assert str(caught.value).endswith(says) and ("would fit" in str(caught.value)) == bool(says)


def test_shares_add_up_and_follow_speed():
    assert shares(8, [0, 0], [1, 1]) == (4, 4)
    assert shares(9, [0, 0], [1, 2]) == (6, 3)
    assert shares(3, [0, 0, 0], [1, 1, 100]) == (1, 1, 1)
    with pytest.raises(PlanError, match="a batch has 2 microbatches"):
        shares(2, [0, 0, 0], [1, 1, 1])


def test_a_small_device_gets_the_stage_that_it_can_hold():
    small = stage_memory(workload(), 0, 1, 2)
    devices = [Device("big", tflops=10), Device("small", tflops=10, memory_bytes=small)]
    made = plan(uniform(devices), workload(stages=2, pipelines=1))
    sizes = {node: last - first + 1 for node, (first, last) in zip(made.pipelines[0], made.stages, strict=True)}
    assert sizes["small"] <= 2 and sizes["big"] >= 6


def test_blocks_are_published_where_bandwidth_is():
    devices = [Device("a", upload=1e9), Device("b", upload=1e9), Device("c", upload=1e8, download=1e9)]
    network = uniform(devices)
    fractions = publisher_fractions(network, per_bit_sent(network), numpy.arange(3))
    assert sum(fractions) == pytest.approx(1)
    assert fractions[2] < 0.1 and fractions[0] == pytest.approx(fractions[1], abs=0.01)
    sent = per_bit_sent(network)
    own = round_seconds(network, sent, numpy.arange(3), 1e9, "publishers", numpy.array(fractions))
    equal = round_seconds(network, sent, numpy.arange(3), 1e9)
    assert own < 0.85 * equal


def test_a_round_s_time_by_hand():
    network = uniform([Device("a", upload=1e9), Device("b", upload=1e9)], latency=0.1)
    sent = per_bit_sent(network)
    assert round_seconds(network, sent, numpy.arange(2), 1e9, "all_to_all") == pytest.approx(1.1)
    assert round_seconds(network, sent, numpy.arange(2), 1e9, "publishers") == pytest.approx(1.2)
    assert round_seconds(network, sent, numpy.arange(1), 1e9) == 0.0


def test_a_device_on_a_thin_line_is_left_out_with_the_number():
    devices = [Device(f"d{i}", tflops=10) for i in range(5)]
    network = uniform(devices)
    bandwidth = network.bandwidth.copy()
    bandwidth[4, :] = bandwidth[:, 4] = 1e4
    made = plan(Network(devices, network.latency, bandwidth), workload())
    assert set(made.spares) == {"d4"}
    assert " s, not " in made.spares["d4"]


def test_only_limited_links_are_compressed():
    devices = [Device(f"{region}{i}", region, tflops=10) for region in ("a", "b") for i in range(2)]
    home = numpy.array([0, 0, 1, 1])
    near = home[:, None] == home[None, :]
    network = Network(devices, numpy.where(near, 1e-4, 0.02), numpy.where(near, 1e11, 2e7))
    choices = (CodecChoice("none", 16, 16), CodecChoice("aqsgd:bits=4", 4, 8, 1e-10))
    made = plan(network, workload(stages=4, pipelines=1, codecs=choices))
    between = {kind: codec for kind, codec in made.codecs.items() if ">" in kind}
    inside = {kind: codec for kind, codec in made.codecs.items() if ">" not in kind}
    assert set(between.values()) == {"aqsgd:bits=4"}
    assert set(inside.values()) == {"none"}
    plain = predict(network, workload(stages=4, pipelines=1), made)
    assert predict(network, workload(stages=4, pipelines=1, codecs=choices), made).step_s < plain.step_s


def test_interleaving_is_chosen_where_it_pays():
    devices = [Device(f"d{i}", tflops=10) for i in range(4)]
    fast = uniform(devices, latency=1e-6, bandwidth=1e12)
    job = workload(batch=8, schedule="interleaved", pipelines=1)
    made = plan(fast, job)
    assert made.schedule == "interleaved" and len(made.stages) > 4
    plain = plan(fast, workload(batch=8, schedule="1f1b", pipelines=1, stages=4))
    assert predict(fast, job, made).step_s < predict(fast, job, plain).step_s
    assert made.stages_of("d0") != (0,)


def test_the_prediction_explains_itself():
    devices = [Device(f"d{i}", tflops=10, price=1.0 + i) for i in range(4)]
    network = uniform(devices, bandwidth=1e7)
    job = workload(stages=2, pipelines=2)
    made = plan(network, job)
    told = predict(network, job, made)
    assert told.tokens_per_second == pytest.approx(32 / told.step_s)
    assert 0 < told.bubble < 1
    assert "Mbit/s" in told.bottleneck
    assert "instead of" in told.helps
    assert told.cost_per_million_tokens == pytest.approx(10 / 3600 * told.step_s / 32 * 1e6)
    assert set(told.to_dict()) >= {"step_s", "tokens_per_second", "bubble", "bottleneck", "cost_per_million_tokens"}


def test_cost_prefers_cheap_devices_until_a_speed_is_wanted():
    devices = [Device(f"cheap{i}", tflops=10, price=0.1) for i in range(2)]
    devices += [Device(f"dear{i}", tflops=20, price=2.0) for i in range(2)]
    network = uniform(devices)
    cheap = plan(network, workload(), objective="cost", time_limit=3)
    assert all(node.startswith("cheap") for node in cheap.nodes)
    speed = 1.5 * predict(network, workload(), cheap).tokens_per_second
    fast = plan(network, workload(), objective="cost", time_limit=3, speed=speed)
    assert predict(network, workload(), fast).tokens_per_second >= speed
    never = plan(network, workload(), objective="cost", time_limit=3, speed=1e9)
    assert "can't be reached" in never.why
    with pytest.raises(PlanError, match="has none"):
        plan(uniform([Device("a")]), workload(), objective="cost")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [({"objective": "speed"}, "unknown objective 'speed'"), ({"time_limit": 0}, "time limit must be above 0")],
)
def test_bad_arguments(arguments, says):
    with pytest.raises(PlanError, match=says):
        plan(uniform([Device("a")]), workload(), **arguments)


def test_the_same_seed_gives_the_same_plan():
    random = numpy.random.default_rng(5)
    devices = [Device(f"d{i}", tflops=float(random.uniform(5, 15))) for i in range(9)]
    network = Network(devices, random.uniform(0, 0.05, (9, 9)), random.uniform(1e8, 2e9, (9, 9)))
    first = plan(network, workload(), seed=3, time_limit=60)
    assert plan(network, workload(), seed=3, time_limit=60) == first


def test_two_that_can_not_reach_each_other_are_planned_apart():
    network = uniform([Device(name, tflops=10) for name in "abc"])
    bandwidth = network.bandwidth.copy()
    bandwidth[0, 1] = bandwidth[1, 0] = 0.0
    apart = Network(network.devices, network.latency, bandwidth)
    made = plan(apart, workload())
    assert not {("a", "b"), ("b", "a")} & set(zip(made.nodes, made.nodes[1:], strict=False)) or len(made.nodes) < 3
    for stage in range(len(made.stages)):
        assert not {"a", "b"} <= set(made.group(stage))
    chain = plan(apart, workload(stages=3, pipelines=1))
    assert chain.pipelines[0][1] == "c"
    with pytest.raises(PlanError, match="avoids the links that do not exist, for example a > b"):
        plan(apart, workload(stages=1, pipelines=3))


@pytest.mark.parametrize("count", [3, 7, 341])
def test_equal_devices_publish_equal_parts_whatever_the_group_s_size(count):
    network = uniform([Device(f"d{i}") for i in range(count)])
    fractions = publisher_fractions(network, per_bit_sent(network), numpy.arange(count))
    assert sum(fractions) == pytest.approx(1, abs=1e-9)
    assert fractions == pytest.approx([1 / count] * count, abs=2e-4)


@pytest.mark.parametrize(("gigabytes", "pieces"), [(8.0, ()), (1.1, (1, 2)), (0.92, (1, 4))])
def test_a_pipeline_of_small_devices_takes_smaller_microbatches(gigabytes, pieces):
    """50 M parameters at 16 bytes are 0.8 GB; each sample of a microbatch takes 0.1 GB."""
    layers = tuple(Layer(f"block {index}", 12_500_000, 1e9, 10_000, 6_000_000) for index in range(4))
    wanted = Workload(layers=layers, batch=32, microbatch=4, stages=1, pipelines=2, overlap=1, update_bits=0.2)
    devices = [Device("large", memory_bytes=8e9), Device("small", memory_bytes=gigabytes * 1e9)]
    pairs = [("large", "small"), ("small", "large")]
    network = Network.measured(devices, dict.fromkeys(pairs, 0.01), dict.fromkeys(pairs, 1e9))
    made = plan(network, wanted)
    assert made.pieces == pieces and sum(made.microbatches) == 8 and made.nodes == ("large", "small")
    assert ("for want of memory" in made.why) == bool(pieces)
    assert Plan.from_json(made.to_json()) == made
