"""Real processes that mix with their neighbours: one is killed, another joins, and all end with the same weights."""

import pytest
from farm import Process

pytestmark = pytest.mark.timeout(1200)  # what is waited for is a state


@pytest.mark.parametrize("pattern", ["gossip", pytest.param("async", marks=pytest.mark.slow)])
def test_without_agreement_a_death_and_a_joiner_are_survived(farm, pattern):
    updates = {"mode": "delta", "agreed": False, "pattern": pattern, "codec": "int8"}
    run = farm(parallel={"pipelines": 2}, train={"learning_rate": 0.01}, updates=updates, checkpoint={"every": 20})
    run.coordinator()
    nodes = run.nodes("ab")
    run.trains("a", "b", steps=10)
    nodes["b"].kill()
    run.node("c")
    last = 20 + run.trains("a", "c", steps=10)
    Process(run, "set", ["coordinator", "set", "state", f"run.steps={last}"])
    [done] = run.wait(lambda: run.c.of("done"), "the run ends")
    losses = {event["step"]: event["loss"] for event in run.events("step")}
    assert done["steps"] == last == max(losses)
    assert sum(losses[last - n] for n in range(10)) < 0.9 * sum(losses[n] for n in range(1, 11))
    said = [event["message"] for event in run.events("warning")]
    assert len(said) == 1 and "no exact log" in said[0]
    assert max(event["step"] for event in run.events("checkpoint")) == last
