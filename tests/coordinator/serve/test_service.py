"""A whole run with fake nodes over real gRPC: join, views, steps, checkpoints, deaths, restart, the end."""

import asyncio
import json

import grpc
import pytest

from farflung import __version__
from farflung.coordinator.observe.status import read_status
from farflung.coordinator.run.nodes import second as second_of_a_key
from farflung.coordinator.serve import ending
from farflung.coordinator.store.store import Store
from farflung.proto import PROTOCOL
from farflung.proto import control_pb2 as pb
from farflung.proto.errors import FarflungError, JobError, RunFailed


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
        node._stop_training()
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
        nodes[name]._stop_training()
        for task in nodes[name].tasks:
            task.cancel()
        await nodes[name].attend()
    another = await cluster.node(link, "e", step_s=600.0)
    await again.event("view", view=2)
    status = json.loads((await another.stub.Status(pb.StatusRequest(run=link.run, ticket=link.ticket))).status)
    assert [one["node"] for one in status["nodes"] if not one["in"]] == ["d"]
    assert "belongs to the node that had it first" in (await cluster.fake(link, "d").join()).refused
    assert not (await cluster.fake(link, "d", key=nodes["d"].key).join()).refused


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


REFUSALS = [
    ({"protocol": 999}, "the node speaks protocol 999", "install the same version"),
    (
        {"protocol": PROTOCOL + 2, "oldest_protocol": PROTOCOL + 1, "version": "9.0"},
        f"the node speaks protocol {PROTOCOL + 1} to {PROTOCOL + 2} (farflung 9.0), the coordinator {PROTOCOL} "
        f"(farflung {__version__})",
        "install the same version",
    ),
    ({"run": "00" * 8}, "the link is for run", "use the link"),
    ({"ticket": "00000000." + "0" * 32}, "the ticket is wrong", "farflung coordinator token"),
    ({"name": "a b"}, "'a b' is no name for a node", "--name"),
    ({"name": "other."}, "'other.' is no name for a node", "a letter or digit first and last"),
    ({"name": "coordinator"}, "a name that no node may have", "--name"),
    ({"name": "Coordinator"}, "a name that no node may have", "--name"),
    ({"name": "FIRST"}, "a node named first is in the run already", "--name FIRST-2"),
    ({"name": "first"}, "a node named first is in the run already", "--name first-2"),
    ({"address": "127.0.0.1:1"}, "unreachable at 127.0.0.1:1", "set --advertise"),
    ({"address": "nonsense"}, "'nonsense' is not HOST:PORT", "set --advertise"),
    ({"certificate_request": b"x"}, "the certificate request", ""),
]


async def test_a_newer_node_that_speaks_the_runs_protocol_joins(cluster):
    """Nodes are upgraded one after the other, before their coordinator is."""
    coordinator = cluster.coordinator()
    node = cluster.fake(await coordinator.link, "newer")
    reply = await node.join(protocol=PROTOCOL + 1, oldest_protocol=PROTOCOL, version="9.0")
    assert not reply.refused and reply.protocol == PROTOCOL


async def test_refusals(cluster):
    coordinator = cluster.coordinator()
    link = await coordinator.link
    await cluster.node(link, "first")
    for changes, sentence, hint in REFUSALS:
        node = cluster.fake(link, "other")
        refused = (await node.join(**changes)).refused.split("\n")
        assert sentence in refused[0] and hint in refused[1], refused
    named = cluster.fake(link, "")
    assert not (await named.join()).refused and named.name == "node-1"


async def test_who_cannot_be_dialled_dials_out(cluster, eventually):
    """Accepted where the node is willing; its peers are told; its end is that of its control stream."""
    coordinator = cluster.coordinator(cluster.job(("steps = 12", "steps = 5000")))  # still trains when d goes
    link = await coordinator.link
    others = [await cluster.node(link, name) for name in "abc"]
    d = cluster.fake(link, "d")
    reply = await d.join(address="127.0.0.1:1", may_dial_out=True)
    assert not reply.refused and reply.dials_out
    d.peers = others[0].peers
    d.peers["d"] = d
    await d.attend()
    await eventually(lambda: any(order.WhichOneof("kind") == "view" for order in others[0].orders))
    view = next(order.view for order in others[0].orders if order.WhichOneof("kind") == "view")
    assert [member.name for member in view.members if member.dials_out] == ["d"]
    status = read_status(coordinator.state)
    assert [node["node"] for node in status["nodes"] if node["dials_out"]] == ["d"]
    ways = {(one["from"], one["to"]): one["way"] for one in status["links"]}
    assert ways["a", "b"] == "opened by a" and ways["a", "d"] == ways["d", "a"] == "opened by d"
    await d.close()
    left = await coordinator.event("left")
    assert "its stream ended and it does not answer: it only dials out" in left["why"]


async def test_same_key_comes_back_and_fences(cluster, monkeypatch):
    monkeypatch.setattr(second_of_a_key, "SILENCE_S", 0.5)
    coordinator = cluster.coordinator()
    link = await coordinator.link
    first = await cluster.node(link, "a")
    first.fall_silent()
    second = await cluster.node(link, "a", key=first.key)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await first.stub.Describe(pb.ArtifactName(name="data/tokens"), metadata=first.metadata)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert (await second.stub.Describe(pb.ArtifactName(name="data/tokens"), metadata=second.metadata)).size > 0


async def test_insecure(cluster):
    coordinator = cluster.coordinator(cluster.job(("pipelines = 2", "pipelines = 1")), insecure=True)
    link = await coordinator.link
    assert link.insecure
    assert "no TLS" in (await coordinator.event("warning"))["message"]
    for name in ("a", "b"):
        await cluster.node(link, name)
    assert await asyncio.wait_for(coordinator.task, 60) == 0


async def test_artifacts(cluster):
    coordinator = cluster.coordinator()
    link = await coordinator.link
    node = await cluster.node(link, "a")
    described = await node.stub.Describe(pb.ArtifactName(name="data/tokens"), metadata=node.metadata)
    facts = node.facts
    assert described.size == (facts.samples + facts.validation_samples) * 17
    assert described.digest.hex() == facts.tokens_digest == facts.artifacts["data/tokens"]
    whole = await node.read("data/tokens")
    assert len(whole) == described.size and await node.read("data/tokens", 5, 7) == whole[5:12]
    for name in ("data/../run.sqlite", "../run.sqlite", "identity/ca.key", "checkpoint/0/manifest.json", ""):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await node.stub.Describe(pb.ArtifactName(name=name), metadata=node.metadata)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.aio.AioRpcError):
        await node.read("data/tokens", described.size, 1)
    with pytest.raises(grpc.aio.AioRpcError):
        await node.stub.Describe(pb.ArtifactName(name="data/tokens"))


async def test_checkpoint_shards(cluster):
    coordinator = cluster.coordinator()
    link = await coordinator.link
    nodes = [await cluster.node(link, name, step_s=600.0) for name in ("a", "b", "c", "d")]
    await coordinator.event("view")
    for one in nodes:
        await one.say(step=pb.StepDone(view=1, step=4))
    a, d = nodes[0], nodes[3]
    first, second = "stage-0.safetensors", "stage-1.safetensors"
    for changes, why in [
        ({"digest": b"x" * 32}, "another digest"),
        ({"file": "../x"}, "keeps no file"),
        ({"file": "manifest.json"}, "keeps no file"),
        ({"files": 0}, "absurd"),
        ({"meta": "nonsense"}, "not JSON"),
    ]:
        refused = (await a.store(4, first, **changes)).refused
        assert why in refused, refused
    broken = a.stub.Store(metadata=a.metadata)
    await broken.write(pb.Shard(step=4, file=first, offset=0, data=b"ab"))
    await broken.done_writing()
    assert "ended before the file did" in (await broken).refused
    assert not (await a.store(4, first)).complete
    folder = coordinator.state / "checkpoints"
    assert [path.name for path in folder.iterdir()] == [".receiving"]
    assert (await d.store(4, second)).complete
    assert (await d.store(4, second)).complete, "sent again after a lost answer"
    assert await a.read(f"checkpoint/4/{second}") == d.content(4)
    assert (await coordinator.event("checkpoint"))["step"] == 4


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
