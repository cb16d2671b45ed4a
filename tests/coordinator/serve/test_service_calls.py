"""The calls of nodes: who may join, and what they fetch and store."""

import asyncio

import grpc
import pytest

from farflung import __version__
from farflung.coordinator.observe.status import read_status
from farflung.coordinator.run.nodes import second as second_of_a_key
from farflung.proto import PROTOCOL
from farflung.proto import control_pb2 as pb

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
        ({"files": 0}, "can't have 0 files"),
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
