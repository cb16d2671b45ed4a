"""The coordinator is killed; nodes train through its absence and find it again."""

import pytest

pytestmark = pytest.mark.timeout(1200)  # what is waited for is a state


def test_nodes_train_on_without_it(farm):
    run = farm(parallel={"pipelines": 2})
    run.coordinator()
    nodes = run.nodes("ab")
    before = run.trains("a", "b")
    run.c.kill()
    there = {name: node.of("step")[-1]["step"] for name, node in nodes.items()}
    run.wait(
        lambda: all(node.of("step")[-1]["step"] >= there[name] + 10 for name, node in nodes.items()),
        "both train 10 steps without a coordinator",
    )
    assert all(node.alive for node in nodes.values())
    run.coordinator()
    first = run.wait(lambda: run.c.of("view"), "a view of the coordinator that came back")[0]
    last = run.trains("a", "b", steps=5)
    assert first["view"] == 2 and first["step"] >= there["a"] + 10
    assert "training goes on after step" in first["why"]
    assert run.status()["term"] == 2
    steps = {event["step"]: event for event in run.events("step")}
    assert last > before and sorted(steps) == list(range(1, max(steps) + 1))
    assert {event["samples"] for event in steps.values()} == {12}
    assert [steps[n]["loss"] for n in range(1, last + 1)] == pytest.approx(run.plain_losses(last), abs=1e-4)
    assert run.events("warning") == []
