"""Over gRPC: a member that computes nothing, while its heartbeats tell of action, is replaced."""

import asyncio

import pytest

from farflung.coordinator.membership.faults import waits
from farflung.proto import control_pb2 as pb

TIMING = {"settle_s": 0.2, "measure_s": 3.0, "return_s": 2.0, "last_checkpoint_s": 5.0, "save_s": 5.0}


async def waiting(nodes, peers):
    """What real nodes say by themselves (node/training/waiting.py), until they are stopped."""
    while True:
        for name, others in peers.items():
            if nodes[name].view is not None and nodes[name].stopped is None:
                await nodes[name].say(waits=pb.Waits(view=nodes[name].view.number, peers=others))
        await asyncio.sleep(0.3)


@pytest.fixture
async def run(cluster, monkeypatch):
    """(coordinator, nodes by name) of a run of four, of which d computes nothing after its second step."""
    monkeypatch.setattr(waits, "ASKED_S", 1.0)
    coordinator = cluster.coordinator(timing={**TIMING, "hung_s": 2.0, "first_s": 2.0})
    link = await coordinator.link
    nodes = {name: await cluster.node(link, name, step_s=0.5) for name in "abcd"}
    await coordinator.event("step", step=2)
    nodes["d"].step_s = 1e6
    return coordinator, nodes


async def test_the_others_say_for_whom_they_wait_and_train_to_the_end(run):
    coordinator, nodes = run
    saying = asyncio.create_task(waiting(nodes, {"a": ["b"], "b": ["d"], "c": ["d"]}))
    try:
        view = await coordinator.event("view", view=2)
        saying.cancel()  # they train
        assert "d is set aside: no step has ended for" in view["why"] and "b and c waited for it" in view["why"]
        done = await coordinator.event("done")
        assert (done["steps"], done["samples"]) == (12, 12 * 8) and "d" not in nodes["a"].plan.nodes
    finally:
        saying.cancel()


async def test_names_that_never_joined_are_refused(run):
    coordinator, nodes = run
    await nodes["a"].say(waits=pb.Waits(view=1, peers=["nobody"]))
    warning = await coordinator.event("warning", node="a")
    assert "whom it waits for is refused" in warning["message"]
