"""Planning from a plan in force: nobody moves without a reason."""

import numpy
import pytest

from farflung.scheduler import Device, Layer, Network, PlanError, Workload, plan

LAYERS = tuple(Layer(f"block {i}", 2_000_000, 1e10, 100_000) for i in range(8))


def workload(**changes):
    return Workload(**({"layers": LAYERS, "batch": 64, "update_bits": 4.0, "overlap": 1} | changes))


def cluster(regions=2, each=4, seed=0, tflops=None):
    random = numpy.random.default_rng(seed)
    count = regions * each
    home = numpy.repeat(numpy.arange(regions), each)
    near = home[:, None] == home[None, :]
    jitter = random.uniform(0.9, 1.1, (count, count))
    speeds = tflops or [10.0] * count
    devices = [Device(f"r{home[i]}-{i % each}", f"r{home[i]}", speeds[i]) for i in range(count)]
    return Network(devices, numpy.where(near, 0.001, 0.05), numpy.where(near, 2e9, 2e8) * jitter)


def without(network, *gone):
    return network.subset([name for name in network.names if name not in gone])


def held(made):
    return {node: [made.stages[stage] for stage in made.stages_of(node)] for node in made.nodes}


def test_identical_input_gives_zero_moves():
    network, job = cluster(), workload(batch=16)
    first = plan(network, job)
    for seed in range(3):
        assert plan(network, job, current=first, seed=seed) is first


def test_a_leaver_s_place_is_taken_by_a_spare_and_nobody_else_moves():
    network = cluster(2, 5)
    first = plan(network, workload(stages=4, pipelines=2))
    assert len(first.spares) == 2
    gone = first.pipelines[1][2]
    second = plan(without(network, gone), workload(stages=4, pipelines=2), current=first)
    before, after = held(first), held(second)
    moved = [node for node in after if node not in before or before[node] != after[node]]
    assert len(moved) == 1 and moved[0] in first.spares
    assert gone + " left" in second.why and "1 node moves" in second.why


def test_without_a_spare_the_broken_pipeline_is_dropped_or_rebuilt_but_training_goes_on():
    network = cluster()
    first = plan(network, workload(stages=4))
    gone = first.pipelines[0][1]
    second = plan(without(network, gone), workload(stages=4), current=first)
    assert gone not in second.nodes
    assert sum(second.microbatches) == 64
    assert set(second.nodes) | set(second.spares) == set(network.names) - {gone}


def test_joiners_become_a_pipeline_of_their_own():
    network = cluster(2, 4)
    small = without(network, *[name for name in network.names if name.startswith("r1")])
    first = plan(small, workload(stages=4))
    second = plan(network, workload(stages=4), current=first)
    assert len(second.pipelines) == 2
    assert all(held(second)[node] == held(first)[node] for node in first.nodes)
    assert "joined" in second.why


def test_a_slow_node_changes_the_plan_only_if_the_stay_pays_the_move():
    network = cluster(1, 5)
    first = plan(network, workload(stages=4, pipelines=1))
    slow = first.pipelines[0][1]
    slower = network.with_speed({slow: 2.0})
    second = plan(slower, workload(stages=4, pipelines=1), current=first, stay=7200)
    assert second is not first and slow in second.spares
    assert "times as fast" in second.why
    assert plan(slower, workload(stages=4, pipelines=1), current=first, stay=0.2) is first


def test_ten_percent_noise_over_twenty_evaluations_gives_at_most_one_change():
    network = cluster(2, 4, seed=3)
    random = numpy.random.default_rng(7)
    job = workload(batch=16)  # a quarter of the actions to simulate, and the same choices
    current, changes = plan(network, job), 0
    for _ in range(20):
        noise = random.uniform(0.9, 1.1, network.bandwidth.shape)
        speeds = {device.name: device.tflops * random.uniform(0.95, 1.05) for device in network.devices}
        seen = Network(network.devices, network.latency, network.bandwidth * noise).with_speed(speeds)
        after = plan(seen, job, current=current)
        changes += not after.same_placement(current)
        current = after
    assert changes <= 1


def test_a_leave_at_sixty_four_devices_moves_nobody_else():
    network = cluster(8, 8)
    job = workload(layers=LAYERS * 3, batch=512, stages=8)
    first = plan(network, job, time_limit=4)
    second = plan(without(network, first.pipelines[3][3]), job, current=first)
    assert all(held(second)[node] == held(first)[node] for node in second.nodes if node in first.nodes)


def test_two_parts_that_can_not_reach_each_other_train_in_the_larger_one():
    network = cluster(2, 4)
    bandwidth = network.bandwidth.copy()
    apart = numpy.array([device.region for device in network.devices])
    bandwidth[apart[:, None] != apart[None, :]] = 0.0
    bandwidth[:, 7] = bandwidth[7, :] = 0.0
    made = plan(Network(network.devices, network.latency, bandwidth), workload())
    assert {name[:2] for name in made.nodes} == {"r0"}
    assert all("reach" in why for why in made.spares.values())
    tight = [Device(d.name, d.region, d.tflops, memory_bytes=60e6) for d in network.devices]
    with pytest.raises(PlanError, match="parts with no link between them"):
        plan(Network(tight, network.latency, bandwidth * numpy.eye(8) + 0.0), workload())
