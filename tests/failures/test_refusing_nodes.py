"""Nodes that leave because the run is not what their owner was promised: they say so, and nobody waits for them."""

import pytest

pytestmark = pytest.mark.timeout(1200)  # what is waited for is a state


def test_who_refuses_the_terms_says_goodbye_and_why(farm):
    run = farm(parallel={"pipelines": 1})
    run.coordinator()
    run.node("a")
    run.trains("a")
    refusing = run.node("b", "--require", "secure")
    run.wait(lambda: not refusing.alive, "it leaves")
    assert refusing.status == 3
    [left] = run.wait(lambda: run.events("left", node="b"), "the coordinator knows")
    assert "this node is to join only with 'secure'" in left["why"]
    [shown] = [node for node in run.status()["nodes"] if node["node"] == "b"]
    assert not shown["in"] and "this node is to join only with 'secure'" in shown["why"]
