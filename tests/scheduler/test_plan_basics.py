"""Plans of small clusters: the shapes, shares and spares that the coordinator relies on."""

import pytest

from farflung.scheduler import Device, Layer, Network, Plan, PlanError, Workload, plan

LAYERS = (
    Layer("embedding", 100_000, 1e4, 128 * 128),
    *(Layer(f"block {i}", 200_000, 1e8, 128 * 128) for i in range(4)),
    Layer("head", 100_000, 5e7, 128 * 256),
)


def workload(**changes):
    values = {"layers": LAYERS, "batch": 32, "microbatch": 4, "update_bits": 4.0} | changes
    return Workload(**values)


def network(count=4, tflops=None, **measured):
    names = [f"node-{i}" for i in range(count)]
    speeds = tflops or [1.0] * count
    devices = [Device(name, tflops=speed) for name, speed in zip(names, speeds, strict=True)]
    pairs = [(a, b) for a in names for b in names if a != b]
    return Network.measured(devices, dict.fromkeys(pairs, 0.001), dict.fromkeys(pairs, 1e9), **measured)


def test_four_equal_nodes_give_two_by_two():
    made = plan(network(), workload(stages=2, pipelines=2))
    assert made.pipelines == (("node-0", "node-1"), ("node-2", "node-3"))
    assert made.microbatches == (4, 4)
    assert made.spares == {}
    assert made == plan(network(), workload(stages=2, pipelines=2), seed=0)
    assert made.stages[0][0] == 0 and made.stages[-1][1] == 5


def test_one_node_holds_everything():
    made = plan(network(1), workload())
    assert made.pipelines == (("node-0",),)
    assert made.stages == ((0, 5),)
    assert made.microbatches == (8,)


def test_a_faster_node_gets_more_layers_and_a_faster_pipeline_more_microbatches():
    made = plan(network(2, tflops=[3.0, 1.0]), workload(stages=2, pipelines=1))
    held = {name: last - first for name, (first, last) in zip(made.pipelines[0], made.stages, strict=True)}
    assert held["node-0"] > held["node-1"]
    made = plan(network(2, tflops=[3.0, 1.0]), workload(stages=1, pipelines=2))
    share = dict(zip((row[0] for row in made.pipelines), made.microbatches, strict=True))
    assert share == {"node-0": 6, "node-1": 2}


def test_spares_have_a_reason_with_a_number():
    made = plan(network(3, tflops=[1.0, 1.0, 0.01]), workload(stages=2, pipelines=1))
    assert list(made.spares) == ["node-2"]
    assert "a step would take 1.92 s, not 0.0305 s" in made.spares["node-2"]


def test_the_current_plan_is_kept_when_nothing_changed():
    first = plan(network(), workload())
    assert plan(network(), workload(), current=first, seed=5) == first


def test_json_is_stable_both_ways():
    made = plan(network(5), workload(stages=2))
    assert Plan.from_json(made.to_json()) == made
    assert Plan.from_json(made.to_json()).to_json() == made.to_json()


def test_helpers():
    made = Plan((("a", "b"), ("c", "d")), ((0, 2), (3, 5)), (3, 1))
    assert made.stage_of("d") == 1 and made.pipeline_of("d") == 1
    assert made.group(0) == ("a", "c")
    assert made.neighbours("a") == (None, "b") and made.neighbours("d") == ("c", None)
    assert made.shares == (0.75, 0.25) and made.share_of("c") == 0.25
    assert [made.publisher(0, block, 4) for block in range(4)] == ["a", "a", "c", "c"]
    with pytest.raises(PlanError, match="in no pipeline"):
        made.stage_of("x")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stages": 7}, "7 stages can't be: the model has 6 layers"),
        ({"stages": 3, "pipelines": 2}, "need 6 devices: 4 joined"),
        ({"pipelines": 9}, "a batch has 8 microbatches"),
        ({"microbatch": 5}, "does not divide"),
    ],
)
def test_wishes_that_can_not_be(changes, says):
    with pytest.raises(PlanError, match=says):
        plan(network(), workload(**changes))


def test_a_model_that_fits_on_nothing_joined():
    small = Network.measured([Device("a", memory_bytes=1e5), Device("b", memory_bytes=1e5)], {}, {})
    with pytest.raises(PlanError, match=r"needs \S+ [kMG]B"):
        plan(small, workload())
