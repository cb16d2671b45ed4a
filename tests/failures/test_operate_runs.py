"""The end of a coordinator that is told to end, and a node that turns out to be slow: real processes."""

import signal
import time

import pytest

DELTA = {"mode": "delta", "codec": "int8", "overlap": 1}
BOTH = [
    pytest.param({"mode": "gradient"}, id="gradient"),
    pytest.param(DELTA, id="delta", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(
    "updates",
    [pytest.param({"mode": "gradient"}, id="gradient"), pytest.param(DELTA, id="delta", marks=pytest.mark.slow)],
)
def test_ctrl_c_asks_for_a_last_checkpoint(farm, updates):
    run = farm(parallel={"pipelines": 2}, updates=updates, checkpoint={"every": 0})
    run.coordinator()
    nodes = run.nodes("ab")
    at = run.trains("a", "b", steps=5)
    run.c.send(signal.SIGINT)
    run.wait(lambda: not run.c.alive and not any(node.alive for node in nodes.values()), "everybody has left")
    assert run.c.status == 130 and [node.status for node in nodes.values()] == [0, 0]
    [kept] = run.status()["checkpoints"]
    assert kept["step"] >= at and run.status()["phase"] == "interrupted"
    run.coordinator()
    run.nodes("ab")
    last = run.trains("a", "b")
    [first] = run.c.of("view")[:1]
    assert first["step"] == kept["step"] and f"from the checkpoint of step {kept['step']}" in first["why"]
    if updates is not DELTA:
        steps = {event["step"]: event for event in run.events("step")}
        assert [steps[n]["loss"] for n in range(1, last + 1)] == pytest.approx(run.plain_losses(last), abs=1e-4)


@pytest.mark.slow
def test_ctrl_c_twice_leaves_at_once(farm):
    run = farm(parallel={"pipelines": 2}, checkpoint={"every": 0})
    run.coordinator()
    nodes = run.nodes("ab")
    run.trains("a", "b")
    nodes["b"].freeze()  # no checkpoint without it, for some seconds at least
    run.c.send(signal.SIGINT)
    run.wait(lambda: any("a last checkpoint" in one["message"] for one in run.c.of("notice")), "it tries")
    began = time.monotonic()
    run.c.send(signal.SIGINT)
    nodes["b"].thaw()
    run.wait(lambda: not run.c.alive, "the coordinator has ended")
    assert run.c.status == 130 and time.monotonic() - began < 12
    assert run.status()["phase"] == "interrupted"


@pytest.mark.slow
def test_a_slow_node_gets_less_and_then_nothing(farm):
    """Ten times slower than it said: the smallest share; where the plan may leave it out, it becomes a spare."""
    run = farm(parallel={"pipelines": 2}, pace=0.01)
    paced = run.folder / "paced.py"
    slowly = "time.sleep(0.01 * float(__import__('os').environ.get('SLOW', '1')))"
    assert "time.sleep(0.01)" in paced.read_text()
    paced.write_text(paced.read_text().replace("time.sleep(0.01)", slowly))
    run.coordinator()
    nodes = {"a": run.node("a"), "b": run.node("b", SLOW="8")}
    run.trains("a", "b")
    view = run.wait(lambda: (v := run.view())["microbatches"] in ([5, 1], [1, 5]) and v, "b has a smaller share")
    assert "b computes at" in view["why"] and view["pipelines"][view["microbatches"].index(1)] == ["b"]
    last = run.trains("a", "b", steps=3)
    assert all(node.alive for node in nodes.values()) and not run.events("left")
    steps = {event["step"]: event for event in run.events("step")}
    assert [steps[n]["loss"] for n in range(1, last + 1)] == pytest.approx(run.plain_losses(last), abs=1e-4)
