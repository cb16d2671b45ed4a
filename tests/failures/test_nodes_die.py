"""Nodes are killed, frozen and cut off in the middle of training; the others go on, and nothing is lost."""

import pytest

pytestmark = pytest.mark.timeout(1200)  # what is waited for is a state


def test_a_killed_node_is_missed_at_once_and_comes_back(farm):
    """The curve is that of one undisturbed process, whatever dies and returns, and every sample is counted once."""
    run = farm(parallel={"pipelines": 3})
    run.coordinator()
    nodes = run.nodes("abc")
    run.trains("a", "b", "c")
    nodes["b"].kill()
    run.trains("a", "c")
    [left] = run.events("left")
    assert left["node"] == "b" and "its stream ended and it does not answer" in left["why"]  # seen, not timed out
    run.node("b")
    run.trains("a", "b", "c")
    nodes["a"].kill()  # the committer, and the first in every order
    last = run.trains("b", "c", steps=5)
    assert all("training goes on after step" in view["why"] for view in run.events("view")[1:])
    assert run.events("warning") == []
    steps = {event["step"]: event for event in run.events("step")}
    assert sorted(steps) == list(range(1, max(steps) + 1))
    assert [steps[n]["samples"] for n in range(1, last + 1)] == [12] * last
    plain = run.plain_losses(last)
    partial = [n for n in range(1, last + 1) if steps[n]["loss"] != pytest.approx(plain[n - 1], abs=1e-4)]
    assert len(partial) <= 2, "a victim's report of its last step may die with it, and with that a part of the mean"


def test_everything_dies_and_resumes(farm):
    run = farm(parallel={"pipelines": 2}, updates={"mode": "delta", "codec": "int8", "overlap": 1})
    run.coordinator()
    nodes = run.nodes("ab")
    run.trains("a", "b")
    newest = run.wait(lambda: run.events("checkpoint"), "a checkpoint")[-1]["step"]
    for process in (run.c, *nodes.values()):
        process.kill()
    run.coordinator()
    assert run.c.of("step") == []
    run.nodes("ab")
    run.trains("a", "b")
    [view] = run.c.of("view")[:1]
    assert f"from the checkpoint of step {view['step']}" in view["why"] and view["step"] >= newest
    assert view["step"] % 5 == 0
