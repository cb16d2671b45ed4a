"""What a plan counts of memory for weights, moments and rounds is what benchmarks/round_copies.py counted, within 2 %,
and what benchmarks/memory.py measured of processes, within 10 % in all ten settings.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from farflung.benchmarks.memory import MODES
from farflung.node.rounds.protocol import window
from farflung.scheduler import Device, Layer, Network, PlanError, Workload, plan
from farflung.scheduler.workloads import jobs, round_copies

MEASURED = {
    row["mode"]: row
    for row in json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "memory.json").read_text())
}
COCKTAIL = "cocktail:random=0.1,top=0.2,bits=4"
SPARSE = "chunked_topk:k=64,bits=2,feedback=true"
CASES = [
    ("gradient, none, 2 nodes", 2, {"mode": "gradient", "codec": "none"}),
    ("gradient, int8, 4 nodes", 4, {"mode": "gradient", "codec": "int8"}),
    ("delta, cocktail, overlap 1, 4 nodes", 4, {"mode": "delta", "codec": COCKTAIL, "overlap": 1}),
    ("delta, int4, overlap 1, 4 nodes", 4, {"mode": "delta", "codec": "int4", "overlap": 1}),
    ("delta, none, overlap 1, 2 nodes", 2, {"mode": "delta", "codec": "none", "overlap": 1}),
    ("gradient, topk with feedback, 4 nodes", 4, {"mode": "gradient", "codec": "topk:ratio=0.01,feedback=true"}),
    (
        "delta, chunked top-k with feedback, overlap 0, 4 nodes",
        4,
        {"mode": "delta", "codec": SPARSE, "overlap": 0, "every": 5},
    ),
    ("delta, cocktail, overlap 1, 2 nodes", 2, {"mode": "delta", "codec": COCKTAIL, "overlap": 1}),
    (
        "delta, cocktail, outer Nesterov, 4 nodes",
        4,
        {"mode": "delta", "codec": COCKTAIL, "overlap": 1, "every": 5, "outer": "nesterov:lr=0.7,momentum=0.9"},
    ),
    (
        "delta, chunked top-k with feedback, overlap 1, 4 nodes",
        4,
        {"mode": "delta", "codec": SPARSE, "overlap": 1, "every": 5},
    ),
]


COUNTED = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "round_copies.json").read_text())
EARLY = "delta, none, overlap 1, 2 nodes"
"""Counted in order, no message of the next round comes early; between processes they do, and the plan counts them."""


@pytest.mark.parametrize("counted", [row for row in COUNTED if row["mode"] != EARLY], ids=lambda row: row["mode"])
def test_a_plan_counts_what_the_members_hold(counted):
    (mode,) = (mode for mode in MODES if mode.name == counted["mode"])
    assert bytes_counted(mode.nodes, mode.updates) == pytest.approx(16.0 + 4.0 * counted["copies"], rel=0.02)


@pytest.mark.parametrize(("mode", "nodes", "updates"), CASES, ids=[case[0] for case in CASES])
def test_bytes_of_a_parameter(mode, nodes, updates):
    row = MEASURED[mode]
    assert bytes_counted(nodes, updates, row["parameters"][1]) == pytest.approx(16.0 + 4.0 * row["copies"], rel=0.1)


def test_a_plan_and_the_rounds_have_the_same_window():
    assert round_copies.IN_FLIGHT == window.IN_FLIGHT


def test_what_was_measured_is_compared():
    assert MEASURED.keys() == {case[0] for case in CASES}


def bytes_counted(nodes, updates, elements=1 << 28):
    """Of a parameter, as a plan counts for a device whose memory is main memory. ``elements``: of the stage."""
    counted = jobs.WEIGHT_BYTES + jobs.moment_bytes({"optimizer": "adamw"}) + jobs.reference_bytes(updates)
    errors = jobs.error_bytes(updates, updates.get("overlap", 0), nodes)
    return counted + errors + jobs.message_bytes(updates, nodes, elements)


def test_a_pipeline_alone_has_no_rounds():
    layers = tuple(Layer(str(at), 1_000_000, 1e9, 10, 10) for at in range(2))
    work = Workload(layers, batch=4, optimizer_bytes=16.0, round_bytes=16.0)
    network = Network.measured([Device("a", memory_bytes=40e6), Device("b", memory_bytes=40e6)], {}, {})
    assert len(plan(network, work, time_limit=5).pipelines) == 1
    with pytest.raises(PlanError, match="fits the memory"):
        plan(network, replace(work, pipelines=2, stages=1), time_limit=5)
    assert len(plan(network, replace(work, pipelines=2, stages=1, round_bytes=0.0), time_limit=5).pipelines) == 2


def test_a_codec_of_the_job_s_owner_is_counted_without_running_it():
    for mode, errors in (("gradient", 4.0), ("delta", 0.0)):
        updates = {"mode": mode, "codec": "theirs.mine:bits=3"}
        assert jobs.error_bytes(updates, 0, 2) == errors and jobs.message_bytes(updates, 2) > 0
