"""A coordinator that starts again, one that cannot start, and one that is told to end."""

import asyncio
import json

import pytest

from farflung.coordinator.observe.status import read_status
from farflung.coordinator.serve import ending
from farflung.coordinator.store.store import Store
from farflung.proto import control_pb2 as pb
from farflung.proto.errors import FarflungError, JobError, RunFailed


async def test_restart_resumes_from_the_newest_checkpoint(cluster):
    job = cluster.job(("steps = 12", "steps = 30"))
    coordinator = cluster.coordinator(job)
    link = await coordinator.link
    nodes = [await cluster.node(link, name, step_s=0.03) for name in ("a", "b", "c", "d")]
    await coordinator.event("checkpoint", step=4)
    await coordinator.event("step", step=6)
    assert await coordinator.end() == 130
    assert all(node.stopped is not None for node in nodes)
    await coordinator.event("phase", phase="stopping")
    told = await coordinator.event("interrupted")
    assert told["checkpoint"] >= 6 and told["lost"] == told["step"] - told["checkpoint"] and not told["why"]
    assert read_status(coordinator.state)["phase"] == "interrupted"
    for node in nodes:
        await node.close()

    changed = cluster.job(("steps = 12", "steps = 20"), ("batch = 8", "batch = 16"))
    with pytest.raises(JobError, match=r"train\.batch \(8 -> 16\)"):
        await cluster.coordinator(changed).task

    again = cluster.coordinator(cluster.job(("steps = 12", "steps = 20")))
    link = await again.link
    nodes = [await cluster.node(link, node.name, key=node.key) for node in nodes]
    view = await again.event("view")
    assert view["step"] >= 4 and f"from the checkpoint of step {view['step']}" in view["why"]
    assert view["view"] == 3, "the second was for the last checkpoint"
    assert nodes[0].orders[0].term == 2
    assert await asyncio.wait_for(again.task, 60) == 0
    done = await again.event("done")
    assert done["steps"] == 20 and done["samples"] == 20 * 8


async def test_nodes_that_outlive_the_coordinator_go_on_where_they_are(cluster):
    coordinator = cluster.coordinator(cluster.job(("steps = 12", "steps = 400")))
    link = await coordinator.link
    nodes = [await cluster.node(link, name) for name in ("a", "b", "c", "d")]
    await coordinator.event("step", step=6)
    port = link.port
    coordinator.task.cancel()  # as hard as it gets inside one process: no stop orders, no goodbyes
    await asyncio.gather(coordinator.task, return_exceptions=True)
    again = cluster.coordinator(cluster.job(("steps = 12", "steps = 400")), listen=f"127.0.0.1:{port}")
    await again.event("listening")
    reached = max(node.step for node in nodes)
    for node in nodes:
        node.stop_training()
        for task in node.tasks:
            task.cancel()
        await node.attend()
    view = await again.event("view")
    assert view["view"] == 2 and view["step"] >= reached and "training goes on" in view["why"]
    await again.event("step", step=reached + 5)
    assert await again.end() == 130


async def test_names_of_nodes_that_are_on_their_way_back_are_taken(cluster, eventually):
    coordinator = cluster.coordinator()
    link = await coordinator.link
    nodes = {name: await cluster.node(link, name, step_s=600.0) for name in ("a", "b", "c", "d")}
    await coordinator.event("view")
    coordinator.task.cancel()
    await asyncio.gather(coordinator.task, return_exceptions=True)
    again = cluster.coordinator(listen=f"127.0.0.1:{link.port}")
    await again.event("listening")
    assert "a node named a is in the run already" in (await cluster.fake(link, "a").join()).refused
    await nodes["d"].die()
    for name in ("a", "b", "c"):
        nodes[name].stop_training()
        for task in nodes[name].tasks:
            task.cancel()
        await nodes[name].attend()
    another = await cluster.node(link, "e", step_s=600.0)
    await again.event("view", view=2)
    status = json.loads((await another.stub.Status(pb.StatusRequest(run=link.run, ticket=link.ticket))).status)
    assert [one["node"] for one in status["nodes"] if not one["in"]] == ["d"]
    assert "belongs to the node that had it first" in (await cluster.fake(link, "d").join()).refused
    assert not (await cluster.fake(link, "d", key=nodes["d"].key).join()).refused


async def test_bad_starts(cluster):
    with pytest.raises(RunFailed, match=r"the model's profile failed \(exit status 7\): it broke"):
        await cluster.coordinator(
            state=cluster.folder / "s1", profile_command=("sh", "-c", "cat >/dev/null; echo it broke >&2; exit 7")
        ).task
    said = '{"error": "a tensor is missing", "hint": "save it again"}'
    with pytest.raises(JobError) as caught:
        await cluster.coordinator(
            state=cluster.folder / "s2", profile_command=("sh", "-c", f"cat >/dev/null; echo '{said}'; exit 2")
        ).task
    assert caught.value.message == "a tensor is missing" and caught.value.hint == "save it again"
    (cluster.folder / "text.txt").write_text("")
    with pytest.raises(JobError, match="the text is empty"):
        await cluster.coordinator(state=cluster.folder / "s3").task
    (cluster.folder / "text.txt").write_text("to be or not to be, that is the question\n" * 200)
    first = cluster.coordinator()
    link = await first.link
    with pytest.raises(FarflungError, match="a coordinator already runs on"):
        await cluster.coordinator().task
    with pytest.raises(FarflungError) as taken:
        await cluster.coordinator(state=cluster.folder / "s4", listen=link.address).task
    assert taken.value.message == f"cannot listen on {link.address}: the port is taken" and taken.value.status == 2
    with pytest.raises(FarflungError, match=r"nowhere\.invalid does not resolve"):
        await cluster.coordinator(state=cluster.folder / "s5", listen="nowhere.invalid:0").task
    assert not (cluster.folder / "s4").exists() and not (cluster.folder / "s5").exists(), "no run is left behind"


async def test_interrupt_while_the_data_are_read(cluster):
    coordinator = cluster.coordinator(profile_command=("sleep", "30"))
    await asyncio.sleep(0.3)
    assert await asyncio.wait_for(coordinator.end(), 25) == 130
    with Store_(coordinator.state) as store:
        assert store.get("phase") == "interrupted"


class Store_:
    def __init__(self, state):
        self.store = Store(state)

    def __enter__(self):
        return self.store

    def __exit__(self, *_):
        self.store.close()


async def test_a_second_signal_waits_for_nobody(cluster, monkeypatch):
    monkeypatch.setattr(ending, "PARTING_S", 600.0)
    coordinator = cluster.coordinator()
    node = await cluster.node(await coordinator.link, "a")
    await coordinator.event("joined")
    for task in node.tasks:
        task.cancel()  # it hears nothing, and its stream stays open
    coordinator.stop.set()
    coordinator.at_once.set()
    assert await asyncio.wait_for(coordinator.task, 60.0) == 130
    told = await coordinator.event("interrupted")
    assert (told["step"], told["checkpoint"], told["why"]) == (0, 0, "no node trained")
