"""A member that sends files of checkpoints which are none: over real gRPC, and the run goes on from its good ones."""

import asyncio
import json
import threading

from coordinator_process import pairs

from farflung.coordinator.checkpoints.uploads import Uploads
from farflung.coordinator.run.durability.saving import Saving
from farflung.proto import control_pb2 as pb
from farflung.scheduler.plans import Plan

LONG = (("steps = 12", "steps = 60000"), ("every = 4\nkeep", "every = 20\nkeep"))
FIRST, SECOND = "stage-0.safetensors", "stage-1.safetensors"


def alone(names, current, broken):
    """Pipelines of one node: each keeps the whole model."""
    plan = pairs(list(names), current, broken)
    names = [name for row in plan.pipelines for name in row] + list(plan.spares)
    return Plan(tuple((name,) for name in sorted(names)), ((0, 3),), (1,) * len(names), {})


async def test_far_away_steps_prune_nothing(cluster):
    """Two tiny files of steps that nobody has trained, from the keeper of the only stage."""
    shape = (("stages = 2", "stages = 1"), ("pipelines = 2", "pipelines = 4"))
    coordinator = cluster.coordinator(cluster.job(*LONG, *shape), planner=alone)
    nodes = {name: await cluster.node(await coordinator.link, name) for name in "abcd"}
    good = (await coordinator.event("checkpoint", number=2))["step"]
    a = nodes["a"]
    for step in (40_000, 59_980):
        await a.say(step=pb.StepDone(view=a.view.number, step=step))
    for step in (40_000, 59_980, 60_000):
        for file, by in ((FIRST, nodes["b"]), (SECOND, a)):
            assert "keeps no file" in (await by.store(step, file, data=b"x" * 100, files=1)).refused
    assert (await coordinator.event("checkpoint", number=4))["step"] > good
    await coordinator.end()
    kept = sorted(path.name for path in (coordinator.state / "checkpoints").glob("step-*"))
    assert len(kept) == 2 and all(int(name[5:]) < 40_000 for name in kept)


async def test_a_far_step_waits_for_others_and_is_refused(cluster, monkeypatch):
    monkeypatch.setattr("farflung.coordinator.serve.calls.files.EARLY_S", 0.2)
    coordinator = cluster.coordinator(cluster.job(*LONG))
    nodes = {name: await cluster.node(await coordinator.link, name) for name in "abcd"}
    await coordinator.event("step", step=2)
    a = nodes["a"]
    await a.say(step=pb.StepDone(view=a.view.number, step=40_000))
    assert "step 40000 was not finished in view 1" in (await a.store(40_000, FIRST)).refused
    warning = await coordinator.event("warning", node="a")
    assert "step 40000" in warning["message"]
    assert (await coordinator.event("checkpoint"))["step"] < 40_000


async def test_a_file_and_what_it_says_of_itself_are_looked_into(cluster):
    """A cursor, or steps of the optimiser, from nowhere would go into the manifest, and from there into a resume."""
    coordinator = cluster.coordinator(cluster.job(*LONG))
    nodes = {name: await cluster.node(await coordinator.link, name, step_s=600.0) for name in "abcd"}
    await coordinator.event("view")
    for node in nodes.values():
        await node.say(step=pb.StepDone(view=1, step=20))
    d = nodes["d"]
    for said in ({"cursor": 2**60}, {"cursor": 160, "redo": [2**40]}, {"cursor": 160, "optimizer_steps": 2**62}):
        assert f"{SECOND} of step 20: " in (await d.store(20, SECOND, meta=json.dumps(said))).refused
    assert "is no safetensors file" in (await d.store(20, SECOND, data=b"x" * 100)).refused
    assert "has more than" in (await d.store(20, SECOND, data=bytes(20 << 20))).refused
    assert not (await nodes["a"].store(20, FIRST)).complete
    assert "both have" in (await d.store(20, SECOND, data=nodes["a"].content(20))).refused
    assert (await d.store(20, SECOND)).complete


async def test_a_disk_that_takes_long_holds_up_nobody_else(cluster, monkeypatch):
    """Whoever comes back asks how much is here while the last piece of its older stream still goes to the disk."""
    loop, busy, free = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def slow(answer):
        def method(*_):
            loop.call_soon_threadsafe(busy.set)
            assert free.wait(20), "the event loop waits with it"
            return answer

        return method

    monkeypatch.setattr(Uploads, "held", slow(7))
    monkeypatch.setattr(Uploads, "begin", slow(None))
    monkeypatch.setattr(Saving, "expects", lambda *_: None)
    coordinator = cluster.coordinator(cluster.job(*LONG))
    node = await cluster.node(await coordinator.link, "a")
    shard = pb.Shard(step=20, file=FIRST, data=b"x")
    asked = pb.ShardName(step=20, file=FIRST, view=1)
    for method, said in ((node.stub.Held, asked), (node.stub.Store, iter([shard]))):
        busy.clear()
        free.clear()
        answer = asyncio.ensure_future(method(said, metadata=node.metadata))
        await busy.wait()
        await node.stub.Describe(pb.ArtifactName(name="data/tokens"), metadata=node.metadata)
        free.set()
        assert (await answer).SerializeToString()
