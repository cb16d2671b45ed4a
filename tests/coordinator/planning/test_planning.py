"""The scheduler asked with a run's numbers."""

import pytest
from planners import planner_of

from farflung.coordinator.planning.planner import fit_shape, memories_of, memory_of, wanted_nodes, workload_of
from farflung.job.data.facts import Facts, LayerProfile, Profile
from farflung.job.schema import Job
from farflung.scheduler import Device, PlanError

LAYERS = [
    LayerProfile(name=f"layer {index}", parameters=100_000, flops_per_sample=3e9, activation_elements_per_sample=1000)
    for index in range(6)
]
FACTS = Facts(
    samples=100,
    validation_samples=5,
    context=16,
    vocabulary=256,
    token_dtype="uint8",
    steps=10,
    tokens_digest="",
    profile=Profile(layers=LAYERS, tied=True, family="gpt2"),
    artifacts={},
)


def job(**parallel):
    base = {
        "run": {"steps": 1},
        "model": {"build": "a:b"},
        "data": {"build": "a:c"},
        "train": {"batch": 8, "microbatch": 2},
    }
    return Job.model_validate({**base, "parallel": parallel})


def test_workload():
    workload = workload_of(job(stages=2), FACTS)
    assert len(workload.layers) == 6 and workload.layers[0].flops == pytest.approx(1e9)
    assert workload.microbatches == 4 and workload.stages == 2 and workload.pipelines is None and workload.tied


def test_memory_of_moments():
    plain, half, away = (
        job().model_copy(update={"train": job().train.model_copy(update=more)})
        for more in ({}, {"moments": "bf16"}, {"offload": True})
    )
    assert [workload_of(one, FACTS).optimizer_bytes for one in (plain, half, away)] == [16.0, 12.0, 8.0]
    assert memory_of(away, "cuda", 8e9) == memory_of(plain, "cpu", 8e9) == 8e9
    assert memory_of(away, "cpu", 8e9) == 4e9  # it has the moments in the same memory
    assert memory_of(plain, "cuda", 8e9, 8) == 8e9 > memory_of(plain, "cpu", 8e9, 8)  # and the messages of rounds


def test_memory_of_islands():
    cards = {"kind": "cuda", "memory_bytes": "8000000000", "devices": 4, "main_bytes": "512000000000"}
    found = memories_of(job(), cards)
    assert found == {"memory_bytes": 8e9, "ranks": 4, "main_bytes": memory_of(job(), "cpu", 512e9)}
    assert memories_of(job(), cards, 8)["main_bytes"] < found["main_bytes"]  # messages of rounds lie there too
    of_one = memories_of(job(), {"kind": "cuda", "memory_bytes": 8e9})
    assert of_one == {"memory_bytes": 8e9, "ranks": 1, "main_bytes": None}
    assert memories_of(job(), {}) == {"memory_bytes": None}
    processes = memories_of(job(), {**cards, "kind": "cpu"})
    assert processes["main_bytes"] == pytest.approx(found["main_bytes"] * 2 / 3)  # their pieces lie there too


def test_masked_updates_wait_for_three_pipelines():
    masked = job(stages=1)
    masked = masked.model_copy(update={"updates": masked.updates.model_copy(update={"secure": True})})
    assert wanted_nodes(masked)[0] == 3
    links = {(a, b): (0.001, 1e9) for a in "abcd" for b in "abcd" if a != b}
    planner = planner_of(
        workload_of(masked, FACTS), lambda name: Device(name, memory_bytes=1e12), lambda: links, least=3
    )
    assert len(planner(("a", "b", "c"), None, frozenset()).pipelines) == 3
    assert len(planner(("a", "b", "c", "d"), None, frozenset()).pipelines) >= 3
    with pytest.raises(PlanError, match=r"updates\.secure waits for nodes for 3 pipelines"):
        planner(("a", "b"), None, frozenset())


def test_wanted_nodes():
    assert wanted_nodes(job()) == (1, "parallel.min_nodes = 1")
    assert wanted_nodes(job(min_nodes=3)) == (3, "parallel.min_nodes = 3")
    assert wanted_nodes(job(stages=2, pipelines=2)) == (4, "2 pipelines of 2 stages")
    assert wanted_nodes(job(stages=3)) == (3, "3 stages")
    assert wanted_nodes(job(pipelines=1, stages=2)) == (2, "1 pipeline of 2 stages")
    interleaved = job(pipelines=1, stages=4, schedule="interleaved", min_nodes=2)
    assert wanted_nodes(interleaved) == (2, "parallel.min_nodes = 2")


def test_interleaved_stages_need_fewer_nodes():
    interleaved = workload_of(job(stages=4, pipelines=2, schedule="interleaved"), FACTS)
    for nodes, shape in ((4, (4, 2)), (3, (4, 1)), (2, (4, 1)), (1, (1, 1))):
        fitted = fit_shape(interleaved, nodes)
        assert (fitted.stages, fitted.pipelines) == shape
    planner = planner_of(interleaved, lambda name: Device(name, memory_bytes=1e9), dict)
    plan = planner(("a", "b", "c", "d"), None, frozenset())
    assert plan.schedule == "interleaved" and len(plan.stages) == 4
    assert [pipeline[:2] * 2 for pipeline in plan.pipelines] == [*plan.pipelines] and len(plan.nodes) == 4


def test_shape_shrinks_by_pipelines_first():
    workload = workload_of(job(stages=2, pipelines=2), FACTS)
    shapes = {nodes: fit_shape(workload, nodes) for nodes in (1, 2, 3, 4, 9)}
    assert {nodes: (one.pipelines, one.stages) for nodes, one in shapes.items()} == {
        1: (1, 1),
        2: (1, 2),
        3: (1, 2),
        4: (2, 2),
        9: (2, 2),
    }
    free = fit_shape(workload_of(job(), FACTS), 3)
    assert free.stages is None and free.pipelines is None


def test_planner():
    links = {(one, other): (0.001, 1e9) for one in "abcd" for other in "abcd" if one != other}
    planner = planner_of(
        workload_of(job(stages=2, pipelines=2), FACTS), lambda name: Device(name, tflops=1.0), lambda: links
    )
    plan = planner(("a", "b", "c", "d"), None, frozenset())
    assert len(plan.pipelines) == 2 and len(plan.stages) == 2 and sum(plan.microbatches) == 4
    fewer = planner(("a", "b", "c"), plan, frozenset())
    assert len(fewer.pipelines) == 1 and len(fewer.spares) == 1
    apart = planner(("a", "b", "c"), None, frozenset({("a", "b")}))
    assert set(apart.nodes) != {"a", "b"}
    with pytest.raises(PlanError, match="no node is left"):
        planner((), None, frozenset())


def test_nodes_that_cannot_reach_each_other_are_spared():
    """Three pipelines of one stage need a group of three: with a pair apart it is two, and a spare with a reason."""
    links = {(one, other): (0.01, 1e9) for one in "abc" for other in "abc" if one != other}
    planner = planner_of(workload_of(job(stages=1, pipelines=3), FACTS), Device, lambda: links)
    assert len(planner(("a", "b", "c"), None, frozenset()).nodes) == 3
    links["a", "c"] = links["c", "a"] = (0.0, 0.0)
    for made in (planner(("a", "b", "c"), None, frozenset()), planner(("a", "b", "c"), None, frozenset({("b", "c")}))):
        assert len(made.pipelines) == 2 and len(made.spares) == 1 and all(made.spares.values())
        assert set(made.nodes) != {"a", "c"}
