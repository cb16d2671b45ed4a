"""Whatever a member or a stranger writes into any word of any message: no file outside the state folder changes, and
no event or log line carries it raw."""

import asyncio
import contextlib
import json
import logging
from io import StringIO

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor

from farflung.proto import PROTOCOL
from farflung.proto import control_pb2 as pb
from farflung.proto.process import logs
from farflung.proto.words.border import harmless_values

NASTY = ["x/../../../.bashrc.d", "../../evil", "/etc/passwd", "a\nb\0", "\x1b]0;owned\x07\x1b[2J", "n" * 200_000]


def filled(kind, text):
    """One message for each of its words, that word being ``text``; inner messages too."""
    for field in kind.DESCRIPTOR.fields:
        if field.type == FieldDescriptor.TYPE_STRING:
            made = kind()
            one = getattr(made, field.name)
            setattr(made, field.name, text) if isinstance(one, str) else one.append(text)
            yield made
        elif field.message_type is not None:
            for inner in filled(getattr(pb, field.message_type.name), text):
                made = kind()
                one = getattr(made, field.name)
                one.append(inner) if hasattr(one, "append") else one.CopyFrom(inner)
                yield made


@pytest.fixture
def written():
    """What is logged meanwhile, as a person at the coordinator reads it."""
    stream, root = StringIO(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logs.set_up("text", stream)
    root.setLevel(logging.INFO)
    yield stream
    root.handlers[:], root.level = handlers, level


async def asked(call):
    """A call whose refusal, of whatever kind, is an answer."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        return await asyncio.wait_for(call, 20)


async def test_hostile_words(cluster, tmp_path, written):
    coordinator = cluster.coordinator(cluster.job())
    link = await coordinator.link
    node = await cluster.node(link, "a")
    before = {path for path in tmp_path.rglob("*") if coordinator.state not in path.parents}
    for text in NASTY:
        for report in filled(pb.Report, text):
            kind = report.WhichOneof("kind")
            if kind not in ("hello", "goodbye", "leaving"):
                await node.say(**{kind: getattr(report, kind)})
        for shard in filled(pb.Shard, text):
            shard.files = shard.last = 1
            await asked(node.stub.Store(iter([shard]), metadata=node.metadata))
        for method in ("Describe", "Held", "Status", "Command"):
            asks = {"Describe": pb.ArtifactName, "Held": pb.ShardName, "Status": pb.StatusRequest}
            for request in filled(asks.get(method, pb.CommandRequest), text):
                await asked(getattr(node.stub, method)(request, metadata=node.metadata))
        for request in filled(pb.JoinRequest, text):
            request.protocol = PROTOCOL
            if not request.run:
                request.run = link.run
            if not request.ticket:
                request.ticket = link.ticket
            await asked(node.stub.Join(request, timeout=60))
    await node.say(leaving=pb.Leaving(why=NASTY[4]))
    await node.say(goodbye=pb.Goodbye(why=NASTY[4]))
    assert "owned" in (await coordinator.event("left"))["why"]
    await coordinator.event("warning")
    status = await node.stub.Status(pb.StatusRequest(run=link.run, ticket=link.ticket))
    after = {path for path in tmp_path.rglob("*") if coordinator.state not in path.parents}
    assert after == before
    assert all(path.name.isprintable() and len(path.name) < 120 for path in coordinator.state.rglob("*"))
    for said in (coordinator.events, json.loads(status.status), written.getvalue()):
        assert harmless_values(said) == said
    lines = written.getvalue().splitlines()
    assert all(line.startswith(("INFO ", "WARNING ")) for line in lines), lines
