"""``farflung status`` and ``farflung runs`` in words."""

import io
from typing import Any

from farflung.cli.one_run.status import headline, node_row, show, show_runs, slowest_link
from farflung.cli.screen.output import Output

RECORD: dict[str, Any] = {
    "name": "shakespeare",
    "state": "runs/shakespeare",
    "running": True,
    "phase": "training",
    "why": "node-5 joined",
    "step": 120,
    "steps": 500,
    "loss": 2.4,
    "eval": {"step": 100, "loss": 2.5, "accuracy": None},
    "tokens_per_second": 8200.0,
    "step_s": 2.5,
    "times_fewer_bytes": 23.4,
    "view": {
        "view": 2,
        "pipelines": [["a", "b"], ["c", "d"]],
        "stages": [[0, 1], [2, 3]],
        "microbatches": [1, 3],
        "spares": {"e": "its uplink would slow the run down"},
        "why": "e joined",
    },
    "nodes": [
        {
            "node": "a",
            "in": True,
            "role": "trains",
            "pipeline": 0,
            "stage": 0,
            "device": "2 cores",
            "tflops": 0.165,
            "heard_s": 0.4,
            "doing": "step 120",
            "address": "10.0.0.1:4000",
        },
        {
            "node": "f",
            "in": False,
            "role": "left",
            "left": 940.0,
            "why": "f left: interrupted by its owner",
            "address": "x:1",
        },
    ],
    "links": [
        {"from": "a", "to": "b", "latency_s": 0.01, "bandwidth_bps": 1e9},
        {"from": "b", "to": "c", "latency_s": 0.1, "bandwidth_bps": 20e6},
    ],
    "checkpoints": [{"step": 100, "path": "runs/shakespeare/checkpoints/100"}],
    "warnings": [{"time": 1.0, "node": "b", "message": "update refused: values that are not finite"}],
    "time": 1000.0,
}


def shown(record: dict[str, Any]) -> str:
    out = Output(stdout=io.StringIO())
    show(out, record)
    return out.stdout.getvalue()


def test_everything_that_a_person_asks_is_there() -> None:
    text = shown(RECORD)
    for words in (
        "shakespeare: training, step 120 of 500",
        "why: node-5 joined",
        "loss 2.4000, 8.2 k tokens/s, 2.5 s a step",
        "validation loss 2.5000 (step 100)",
        "23x fewer bytes than fp16",
        "newest checkpoint: runs/shakespeare/checkpoints/100",
        "pipeline 0: a (layers 0-1) -> b (layers 2-3), 1 microbatch a step",
        "pipeline 1: c (layers 0-1) -> d (layers 2-3), 3 microbatches a step",
        "spare: e: its uplink would slow the run down",
        "stage 0 of pipeline 0: step 120",
        "  left: interrupted by its owner",
        "slowest link: b -> c, 20 Mbit/s, 0.1 s one way",
        "warning (b): update refused",
    ):
        assert words in text


def test_a_target_that_is_away_and_who_leads() -> None:
    text = shown(
        {**RECORD, "target": {"why": "s3://b cannot be written: refused"}, "leader": "x:1", "standbys": ["y:2"]}
    )
    assert "checkpoints stay here for now: s3://b cannot be written: refused" in text
    assert "led by x:1; stands by: y:2" in text


def test_a_new_run_has_little_to_say() -> None:
    text = shown({"name": "x", "running": True, "phase": "waiting", "why": "waiting for 2 more nodes", "time": 1.0})
    assert text == "x: waiting\nwhy: waiting for 2 more nodes\n"


def test_a_dead_coordinator_is_named() -> None:
    assert headline({**RECORD, "running": False}) == (
        "shakespeare: its coordinator has ended while training, step 120 of 500"
    )
    assert headline({**RECORD, "running": False, "phase": "done"}) == "shakespeare: done, step 120 of 500"


def test_times_are_relative() -> None:
    rows = [node_row(node, 1000.0) for node in RECORD["nodes"]]
    assert [row[3] for row in rows] == ["0.4 s ago", "1 min 00 s ago"]


def test_links_without_a_measurement_are_left_out() -> None:
    assert slowest_link([{"from": "a", "to": "b", "latency_s": 0.1, "bandwidth_bps": 0.0}]) == ""


def test_a_link_of_a_node_that_is_gone_is_no_slowest_link() -> None:
    shown = io.StringIO()
    nodes = [{"node": "a"}, {"node": "b"}, {"node": "c", "in": False, "why": "c was killed", "left": 3.0}]
    links = [
        {"from": "a", "to": "c", "latency_s": 0.1, "bandwidth_bps": 1e6},
        {"from": "a", "to": "b", "latency_s": 0.1, "bandwidth_bps": 9e6},
    ]
    show(Output(stdout=shown), {**RECORD, "nodes": nodes, "links": links})
    assert "slowest link: a -> b" in shown.getvalue()


def test_runs() -> None:
    out = Output(stdout=io.StringIO())
    show_runs(out, [RECORD, {**RECORD, "state": "runs/old", "running": False, "why": ""}], "runs")
    first, second = out.stdout.getvalue().splitlines()[1:]
    assert first.split()[:5] == ["runs/shakespeare", "training", "120", "of", "500"]
    assert second.split()[:2] == ["runs/old", "ended"]
    out = Output(stdout=io.StringIO())
    show_runs(out, [{**RECORD, "running": False, "phase": "interrupted"}], "runs")
    assert "interrupted" in out.stdout.getvalue(), "as `farflung status` says"
    out = Output(stdout=io.StringIO())
    show_runs(out, [], "runs")
    assert "farflung run JOB" in out.stdout.getvalue()
