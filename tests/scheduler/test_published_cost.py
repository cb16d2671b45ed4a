"""DT-FM's cost: by hand, symmetric parts, and the search's known optima on the published networks."""

import time
from pathlib import Path

import numpy
import pytest

from farflung.scheduler import Device, Network, PlanError, plan
from farflung.scheduler.published.dtfm import Dtfm
from farflung.scheduler.published.search import align, five_points, search_dtfm
from farflung.scheduler.workloads.jobs import paper_workload

NETWORKS = Path(__file__).parents[2] / "benchmarks" / "data" / "dtfm_networks.json"


def uniform(count, latency=0.01, gbps=1.0):
    devices = [Device(f"d{i}") for i in range(count)]
    return Network(devices, numpy.full((count, count), latency), numpy.full((count, count), gbps * 1e9))


def test_the_cost_of_a_uniform_network_by_hand():
    model = Dtfm(uniform(64), 8, 8)
    data = 7 * 2 * (0.01 + 8 * (1.3 * 4 * 3 / 24) / 8)
    hop = 0.01 + 8 * 2024 * 2048 * 2 * (1e6 / 2048 / 8) / 2**30
    cost = model.cost(numpy.arange(64).reshape(8, 8))
    assert cost.data == pytest.approx(data)
    assert cost.pipe == pytest.approx(7 * hop)
    assert cost.total == pytest.approx(data + 14 * hop)


def test_the_emitted_pipelines_have_the_claimed_cost():
    network = Network.load(f"{NETWORKS}#case5_worldwide")
    model = Dtfm(network, 8, 8)
    groups = numpy.random.default_rng(1).permutation(64).reshape(8, 8)
    cost = model.cost(groups)
    hops = [model.pipe[cost.pipelines[:, s], cost.pipelines[:, s + 1]].max() for s in range(7)]
    assert sum(hops) == pytest.approx(cost.pipe)
    assert sorted(cost.pipelines.reshape(-1).tolist()) == list(range(64))
    assert {frozenset(column) for column in cost.pipelines.T.tolist()} == {frozenset(row) for row in groups.tolist()}


@pytest.mark.parametrize(
    ("case", "goal"),
    [
        ("case1_datacenter_on_demand", 3.440),
        ("case2_datacenter_spot", 31.63),
        ("case3_multi_datacenter", 16.09),
        ("case4_regional_us", 34.80),
        ("case5_worldwide", 49.22),
    ],
)
def test_the_constructions_alone_reach_the_published_optima(case, goal):
    found = search_dtfm(Network.load(f"{NETWORKS}#{case}"), 8, 8, time.monotonic(), 0)
    assert float(f"{found.total:.4g}") <= goal


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_the_unbalanced_world(seed):
    network = Network.load(f"{NETWORKS}#case5_2_worldwide_unbalanced")
    assert search_dtfm(network, 8, 8, time.monotonic() + 60, seed).total <= 61.5


def test_the_objective_gives_a_plan_and_says_its_cost():
    made = plan(uniform(9), paper_workload(8, 64, stages=4, pipelines=2), objective="dtfm", time_limit=1)
    assert len(made.pipelines) == 2 and len(made.stages) == 4 and len(made.spares) == 1
    assert made.why.startswith("the published cost is")
    with pytest.raises(PlanError, match="need 12 devices: 9 joined"):
        plan(uniform(9), paper_workload(8, 64, stages=4, pipelines=3), objective="dtfm")


def test_crossover_keeps_a_partition_and_labels_are_aligned():
    random = numpy.random.default_rng(0)
    first = random.permutation(24).reshape(4, 6)
    assert numpy.array_equal(align(first, first[[2, 0, 3, 1]]), first)
    child = five_points(first, random.permutation(24).reshape(4, 6), random)
    assert sorted(child.reshape(-1).tolist()) == list(range(24))
