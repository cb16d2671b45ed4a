"""A whole run with fake nodes over real gRPC: join, views, steps, checkpoints, deaths, restart, the end."""

import asyncio
import json

import pytest

from farflung.coordinator.observe.status import read_status
from farflung.proto import control_pb2 as pb


async def test_a_run_from_start_to_end(cluster):
    coordinator = cluster.coordinator(planner=None)  # the scheduler's
    link = await coordinator.link
    nodes = [await cluster.node(link, name) for name in ("a", "b", "c", "d")]
    assert await asyncio.wait_for(coordinator.task, 60) == 0
    kinds = [event["event"] for event in coordinator.events]
    assert [event["node"] for event in coordinator.events if event["event"] == "joined"] == ["a", "b", "c", "d"]
    assert [event["why"] for event in coordinator.events if event["event"] == "left"] == []
    assert kinds.count("view") == 1 and kinds.count("step") == 12 and kinds.count("eval") == 3
    view = await coordinator.event("view")
    assert view["view"] == 1 and [len(row) for row in view["pipelines"]] == [2, 2] and view["stages"][-1][1] == 3
    assert view["codecs"] == {"updates": "none", "activations": "none", "gradients": "none"}
    step = await coordinator.event("step", step=12)
    assert step["samples"] == 8 and step["loss"] == pytest.approx(2.5) and step["bytes_updates"] == 40
    done = await coordinator.event("done")
    assert done["steps"] == 12 and done["eval_loss"] == pytest.approx(2.0) and done["samples"] == 96
    assert done["views"] == 1 and done["bytes_total"] == 12 * 40
    assert done["checkpoint"].endswith("step-00000012")
    assert all(node.stopped is not None and not node.stopped.failed for node in nodes)
    manifest = json.loads((coordinator.state / "checkpoints" / "step-00000012" / "manifest.json").read_text())
    assert manifest["files"] == ["stage-0.safetensors", "stage-1.safetensors"] and manifest["cursor"] == 96
    assert manifest["rounds"] == {"stage-0.safetensors": 12, "stage-1.safetensors": 12}
    assert manifest["job"]["train"]["batch"] == 8
    assert sorted(path.name for path in (coordinator.state / "checkpoints").iterdir() if path.name[0] != ".") == [
        "step-00000008",
        "step-00000012",
    ]
    status = read_status(coordinator.state)
    assert status["phase"] == "done" and not status["running"] and status["step"] == 12
    assert [node["in"] for node in status["nodes"]] == [False] * 4 or status["nodes"]
    assert status["times_fewer_bytes"] == pytest.approx(10)
    assert status["savings"] == "10x fewer bytes than fp16"


async def test_a_killed_node_costs_one_view_change(cluster):
    coordinator = cluster.coordinator(
        cluster.job(("steps = 12", "steps = 60"), ("every = 4\nkeep", "every = 10\nkeep"))
    )
    link = await coordinator.link
    nodes = {name: await cluster.node(link, name) for name in ("a", "b", "c", "d")}
    first = await coordinator.event("view")
    await coordinator.event("step", step=5)
    victim = first["pipelines"][1][1]
    killed = asyncio.get_running_loop().time()
    await nodes[victim].die()
    second = await coordinator.event("view", view=2)
    assert asyncio.get_running_loop().time() - killed < 1.0
    assert victim in second["why"] and "training goes on after step" in second["why"]
    assert victim not in [name for row in second["pipelines"] for name in row]
    assert await asyncio.wait_for(coordinator.task, 60) == 0
    steps = [event["step"] for event in coordinator.events if event["event"] == "step"]
    assert sorted(set(steps)) == list(range(1, 61))
    done = await coordinator.event("done")
    assert done["samples"] in (60 * 8, 60 * 8 - 4), "the report of the victim's last step may have died with it"


async def test_a_joiner_with_another_base_is_put_out_and_the_run_goes_on(cluster, eventually):
    coordinator = cluster.coordinator(cluster.job(("steps = 12", "steps = 60000")))
    link = await coordinator.link
    nodes = [await cluster.node(link, name) for name in "abcd"]
    await coordinator.event("step", step=2)
    await nodes[3].die()
    await coordinator.event("view", view=nodes[0].view.number + 1)
    stranger = await cluster.node(link, "e", base=8)
    left = await coordinator.event("left", node="e")
    assert "its frozen weights of layer" in left["why"]
    seen = max(event["step"] for event in coordinator.events if event["event"] == "step")
    await coordinator.event("step", step=seen + 9)
    await eventually(lambda: stranger.stopped is not None)
    assert stranger.stopped.refused and stranger.stopped.why.startswith("e cannot train: its frozen weights of layer")
    assert all(node.stopped is None for node in nodes[:3]) and all(node.view.checkpoint < 0 for node in nodes[:3])


async def test_histories_that_differ_change_the_view(cluster, eventually):
    coordinator = cluster.coordinator(cluster.job(("steps = 12", "steps = 6000")))
    link = await coordinator.link
    nodes = {name: await cluster.node(link, name) for name in ("a", "b", "c", "d")}
    await coordinator.event("step", step=3)
    await nodes["a"].say(evidence=pb.Evidence(peer="c", why="h is 7 there and 8 here", diverged=True))
    second = await coordinator.event("view", view=2)
    assert second["why"].startswith("a and c hold different histories of a section; training goes on after step")
    await eventually(lambda: nodes["a"].view.number == 2)
    assert [one.chain for one in nodes["a"].view.sections] == [7] * 4


async def test_a_lost_stage_goes_back_to_the_checkpoint(cluster):
    coordinator = cluster.coordinator(cluster.job(("pipelines = 2", "pipelines = 1"), ("steps = 12", "steps = 40")))
    link = await coordinator.link
    nodes = {name: await cluster.node(link, name, step_s=0.03) for name in ("a", "b")}
    first = await coordinator.event("view")
    await coordinator.event("checkpoint", step=8)
    await coordinator.event("step", step=10)
    await nodes[first["pipelines"][0][1]].die()
    second = await coordinator.event("view", view=2)
    assert second["step"] == 8 and "from the checkpoint of step 8" in second["why"]
    assert await asyncio.wait_for(coordinator.task, 60) == 0
    assert (await coordinator.event("done"))["samples"] == 40 * 8


async def test_phases_are_said_as_they_come(cluster):
    coordinator = cluster.coordinator(cluster.job(("pipelines = 2", "pipelines = 1"), ("steps = 12", "steps = 400")))
    link = await coordinator.link
    nodes = [await cluster.node(link, name, step_s=0.03) for name in ("a", "b")]
    await coordinator.event("phase", phase="training")
    await coordinator.event("step")
    for node in nodes:
        await node.die()
    waits = await coordinator.event("phase", phase="waiting")
    assert waits["why"] == read_status(coordinator.state)["why"]


async def test_joiner_and_leaver(cluster, eventually):
    job = cluster.job(("stages = 2\npipelines = 2\n", "stages = 2\n"), ("steps = 12", "steps = 100000"))
    coordinator = cluster.coordinator(job, min_nodes=2)
    link = await coordinator.link
    a, b = await cluster.node(link, "a"), await cluster.node(link, "b")
    await coordinator.event("step", step=3)
    c, d = await cluster.node(link, "c"), await cluster.node(link, "d")
    number, inside = 1, []
    while inside != ["a", "b", "c", "d"]:  # one view more if the second joiner came a moment after the first
        number += 1
        view = await coordinator.event("view", view=number)
        inside = sorted(name for row in view["pipelines"] for name in row)
    await coordinator.event("step", view=number)
    await c.say(goodbye=pb.Goodbye(why="Ctrl-C"))
    left = await coordinator.event("left")
    assert left["node"] == "c" and left["why"] == "Ctrl-C"
    await coordinator.event("view", view=number + 1)
    await coordinator.event("step", view=number + 1)
    status = json.loads((await a.stub.Status(pb.StatusRequest(run=link.run, ticket=link.ticket))).status)
    assert status["phase"] == "training" and status["running"]
    live = {node["node"]: node for node in status["nodes"]}
    assert live["a"]["attending"] and not live["c"]["in"]
    assert await coordinator.end() == 130
    assert b.stopped and d.stopped


async def test_a_fixed_shape_waits_and_says_for_what(cluster, eventually):
    coordinator = cluster.coordinator()
    link = await coordinator.link
    await cluster.node(link, "a")
    await eventually(
        lambda: "waiting for 3 more nodes (2 pipelines of 2 stages); a in" in read_status(coordinator.state)["why"]
    )
    assert read_status(coordinator.state)["running"]
    assert await coordinator.end() == 130


async def test_what_the_others_refuse_is_counted_and_evicts(cluster, eventually):
    coordinator = cluster.coordinator(cluster.job(("steps = 12", "steps = 6000")))
    link = await coordinator.link
    nodes = {name: await cluster.node(link, name) for name in ("a", "b", "c", "d")}
    await coordinator.event("step", step=2)
    nodes["e"] = await cluster.node(link, "e")  # [a, b] and [c, d] train, e is a spare
    why = "update refused: values that are not finite"
    for stranger in ("a", "e"):
        await nodes[stranger].say(warning=pb.Warning(node="d", message=why, refused=30))
    await nodes["c"].say(warning=pb.Warning(node="d", message=why, refused=9))
    await coordinator.event("warning", node="d", message=why)
    status = json.loads((await nodes["a"].stub.Status(pb.StatusRequest(run=link.run, ticket=link.ticket))).status)
    assert {one["node"]: one["refused"] for one in status["nodes"]} == {**dict.fromkeys("abce", 0), "d": 9}
    await nodes["b"].say(warning=pb.Warning(node="d", message=why, refused=5))
    left = await coordinator.event("left")
    assert left["node"] == "d"
    assert left["why"].startswith("evicted by the coordinator: what it sent was refused by b, c")
    await eventually(lambda: nodes["d"].stopped is not None)
    assert nodes["d"].stopped.refused and "evicted" in nodes["d"].stopped.why
    again = await coordinator.event("view", pipelines=[["a", "b"], ["c", "e"]])
    await coordinator.event("step", view=again["view"])
    await nodes["a"].say(warning=pb.Warning(node="c", message="a lie", refused=30))
    apart = "a refuses what c sends, and nobody else has seen it: the two are planned apart"
    await coordinator.event("warning", message=apart)
    await nodes["a"].say(warning=pb.Warning(node="b", message="a lie", refused=30))
    left = await coordinator.event("left", 2)
    assert left["node"] == "a" and "it alone refuses what b and c send" in left["why"]


async def test_links_of_an_earlier_life_are_forgotten(cluster, eventually):
    coordinator = cluster.coordinator(cluster.job(("steps = 12", "steps = 6000")))
    link = await coordinator.link
    nodes = {name: await cluster.node(link, name) for name in ("a", "b", "c", "d")}
    await coordinator.event("step", step=2)
    await nodes["a"].say(links=pb.Links(links=[pb.LinkMeasurement(to="d", latency_s=0.0, bandwidth_bps=0.0)]))

    async def measured():
        reply = await nodes["a"].stub.Status(pb.StatusRequest(run=link.run, ticket=link.ticket))
        return {(one["from"], one["to"]): one["bandwidth_bps"] for one in json.loads(reply.status)["links"]}

    while (await measured()).get(("a", "d")) != 0.0:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    await nodes["d"].close()
    await coordinator.event("left", node="d")
    await cluster.node(link, "d", key=nodes["d"].key)
    await coordinator.event("joined", 2, node="d")
    assert (await measured()).get(("a", "d")) != 0.0


async def test_auto_activations_are_a_codec_before_anybody_hears_of_them(cluster):
    auto = ("[checkpoint]", '[activations]\nforward = "auto"\n[checkpoint]')
    coordinator = cluster.coordinator(cluster.job(auto, ("steps = 12", "steps = 4")))
    link = await coordinator.link
    for name in ("a", "b", "c", "d"):
        await cluster.node(link, name)
    view = await coordinator.event("view")
    assert view["codecs"]["activations"] == "int8"
    [note] = [one["message"] for one in coordinator.events if "auto" in one.get("message", "")]
    assert note.startswith('activations.forward = "auto" is int8: in 4 steps')
    assert await asyncio.wait_for(coordinator.task, 60) == 0


async def test_fewer_samples_than_a_batch_are_warned_of(cluster):
    (cluster.folder / "text.txt").write_text("to be or not to be, that is the question\n" * 2)
    coordinator = cluster.coordinator(cluster.job())
    await coordinator.link
    assert "and a batch takes 8" in (await coordinator.event("warning"))["message"]
    await coordinator.end()
