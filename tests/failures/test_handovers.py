"""A node of real processes loses its place: what it had learnt goes on with those who train its layers."""

import pytest

pytestmark = pytest.mark.timeout(1200)  # what is waited for is a state


def handed(nodes):
    """What nodes say that they go on with."""
    said = [event["message"] for node in nodes.values() for event in node.of("notice")]
    return [one for one in said if one.startswith("goes on with what ")]


def test_what_a_node_had_learnt_goes_on_where_its_layers_are_trained(farm):
    """Of two pipelines of two stages one node is killed: the other one of its pipeline has no place any more."""
    updates = {"mode": "delta", "codec": "topk:ratio=0.05", "overlap": 1}
    run = farm(parallel={"stages": 2, "pipelines": 2, "min_nodes": 4}, updates=updates)
    run.coordinator()
    nodes = run.nodes("abcd")
    run.trains(*"abcd", steps=4)
    [*_, broken] = run.view()["pipelines"]
    nodes.pop(killed := broken[1]).kill()
    before = len(handed(nodes))  # a plan that is better moves layers too
    run.wait(lambda: len(handed(nodes)) > before, "what it had learnt is handed over")
    last = run.step()
    run.wait(lambda: run.step() >= last + 4, "the others train on")
    assert not [one for one in handed(nodes) if "(norm 0)" in one]
    lost = [event for event in run.events("warning") if "and not sent is lost" in event.get("message", "")]
    assert not [event for event in lost if event.get("node") != killed]
    assert all(node.alive for node in nodes.values())
