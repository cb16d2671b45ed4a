"""Peers that hold connections, memory or names that are not theirs: each is refused and counted, and others go on."""

import asyncio
import contextlib
import dataclasses
import socket

import pytest
import xxhash
from numbered import numbered
from wires import wait_for

import farflung.node.peers.receiving.reassembly as inbound_stream
import farflung.node.peers.receiving.server as inbound
from farflung.node.io.thread import IoThread
from farflung.node.wire.events import Received
from farflung.proto import PROTOCOL
from farflung.proto.connections import rpc
from farflung.proto.control_pb2 import Member
from farflung.proto.data_pb2 import Greeting, Header, State
from farflung.proto.data_pb2 import Kind as Message
from farflung.proto.messages import frame as frames
from farflung.proto.messages.frame import Frame, Kind


class Attacker:
    """Raw streams to a node. It may know everything that a member of the run knows."""

    def __init__(self, wire):
        self.wire = wire
        self._calls, self._channel = [], None

    def __call__(self, work):
        """Run a coroutine on the loop that gRPC has in this process, and wait for it."""
        done = []

        async def run():
            done.append(await work)

        IoThread.run(run()).wait(60)
        return done[0]

    async def stream(self, *first, **changes):
        """A new stream that greets (unless there is a ``first``), and its answer."""
        if self._channel is None:
            self._channel = rpc.peer_channel(f"127.0.0.1:{self.wire.port}", "b", rpc.Credentials())
        call = rpc.peer_method(self._channel)
        self._calls.append(call)
        known = {"protocol": PROTOCOL, "run": "run-1", "name": "a", "session": "a-1", "to": "b", "to_session": "b-1"}
        hello = Greeting(**{**known, **changes}).SerializeToString()
        await call.write(first[0] if first else whole(Frame(Kind.HELLO, head=hello)))
        return call, await self.answer(call)

    async def answer(self, call, timeout=40):
        message = await asyncio.wait_for(call.read(), timeout)
        if message is rpc.END:
            return "ended"
        return frames.decode(message)[0]

    async def close(self):
        for call in self._calls:
            call.cancel()
        if self._channel is not None:
            await self._channel.close(None)
        self.wire, self._calls, self._channel = None, [], None


def whole(*several):
    return b"".join(b"".join(frames.encode(one)) for one in several)


def opened(total, transfer=1, priority=2):
    header = numbered(Message.STATE, view=1).SerializeToString()
    return whole(Frame(Kind.OPEN, transfer, priority, head=header, total=total))


@pytest.fixture
def victim(thread_nodes):
    """b, in a view with a, which the attacker is, and with c, which must not notice anything."""
    for name in "bc":
        thread_nodes.start(name)
    members = [Member(name="a", session="a-1", address="127.0.0.1:1"), *thread_nodes.members()]
    for wire in thread_nodes.wires.values():
        wire.enter(1, members)
    attacker = Attacker(thread_nodes.wires["b"])
    yield attacker
    attacker(attacker.close())
    thread_nodes.wires["c"].send("b", numbered(Message.STATE), b"all is well", priority=0)
    assert bytes(wait_for(thread_nodes.wires["b"], Received).payload) == b"all is well"


def counts(attacker):
    return attacker.wire.statistics()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"protocol": 99}, "speaks protocol 99"),
        ({"run": "another"}, "is in run another"),
        ({"to": "d"}, "wants d, but this is b"),
        ({"to_session": "b-0"}, "an earlier session of b"),
    ],
)
def test_a_greeting_that_does_not_fit(victim, changes, why):
    _, answer = victim(victim.stream(**changes))
    assert answer.kind is Kind.REFUSE and why in bytes(answer.head).decode()
    assert counts(victim)["greeting refused"] == 1


def test_one_that_never_says_who_it_is(victim, monkeypatch):
    monkeypatch.setattr(inbound, "GREETING_SECONDS", 0.3)

    async def silent():
        victim._channel = rpc.peer_channel(f"127.0.0.1:{victim.wire.port}", "b", rpc.Credentials())
        call = rpc.peer_method(victim._channel)
        victim._calls.append(call)
        return await victim.answer(call)

    answer = victim(silent())
    assert answer.kind is Kind.REFUSE and b"no greeting within" in answer.head


def test_too_many_strangers(victim, monkeypatch):
    monkeypatch.setattr(inbound, "MOST_STRANGERS", 0)
    _, answer = victim(victim.stream())
    monkeypatch.undo()
    assert answer.kind is Kind.REFUSE and b"have not said yet who they are" in answer.head


def test_too_many_streams_of_one_peer(victim):
    async def many():
        return [(await victim.stream(session=f"a-{number}"))[1] for number in range(inbound.MOST_STREAMS + 2)]

    answers = victim(many())
    welcome = [answer.kind is Kind.WELCOME for answer in answers]
    assert welcome == [True] * inbound.MOST_STREAMS + [False] * 2
    assert b"streams open here already" in answers[-1].head


def test_a_newer_stream_ends_the_older(victim):
    async def twice():
        first, _ = await victim.stream()
        await victim.stream()
        return await victim.answer(first)

    answer = victim(twice())
    assert answer == "ended" or b"a newer stream has taken its place" in answer.head


def test_a_message_larger_than_what_one_peer_may_hold(victim):
    async def huge():
        call, _ = await victim.stream()
        await call.write(opened(1 << 39))
        return await victim.answer(call)

    answer = victim(huge())
    assert answer.kind is Kind.REFUSE and b"are the most" in answer.head
    assert counts(victim)["broken frame"] == 1


def test_a_message_that_is_begun_and_never_ended(victim, monkeypatch):
    """A slow loris: its memory is free again, and what it began is not delivered."""
    monkeypatch.setattr(inbound_stream, "STALLED_SECONDS", 0.4)

    async def loris():
        call, _ = await victim.stream()
        await call.write(opened(1 << 28))
        answer = asyncio.create_task(victim.answer(call))
        with contextlib.suppress(*rpc.BROKEN):
            for offset in range(2000):  # a byte now and then is no progress
                if answer.done():
                    break
                chunk = Frame(Kind.CHUNK, 1, 2, body=b"x", seq=offset, offset=offset, total=1 << 28)
                await call.write(whole(chunk))
                await asyncio.sleep(0.02)
        return await answer

    answer = victim(loris())
    assert answer == "ended" or b"nothing of an incomplete message came" in answer.head
    assert counts(victim)["stream ended here"] == 1 and counts(victim)["incomplete"] == 1


@pytest.mark.parametrize(
    "sent",
    [
        b"\0" * 64,
        whole(Frame(Kind.CHUNK, 5, 1, body=b"x", total=9)),
        whole(Frame(Kind.END, 5, 1, total=9)),
        whole(Frame(Kind.HELLO, head=b"again")),
        whole(Frame(Kind.WHOLE, 1, 1, head=b"\xff\xff\xff")),
        whole(Frame(Kind.WHOLE, 1, 1, head=Header(kind=Message.READY, view=1, state=State()).SerializeToString())),
        opened(10)[:-1] + b"\1",
        opened(10) + 2 * whole(Frame(Kind.CHUNK, 1, 2, body=b"12345", offset=5, total=10)),
        opened(10)
        + whole(
            Frame(Kind.CHUNK, 1, 2, body=b"123", total=10),
            Frame(Kind.CHUNK, 1, 2, body=b"456", seq=1, offset=2, total=10),
        ),
        opened(10) + whole(Frame(Kind.END, 1, 2, total=9)),
        opened(2)
        + whole(Frame(Kind.CHUNK, 1, 2, body=b"12", total=2), Frame(Kind.END, 1, 2, seq=1, total=2, digest=3)),
    ],
    ids=[
        "noise",
        "chunk of nothing",
        "end of nothing",
        "greeting again",
        "no header",
        "another kind's body",
        "checksum",
        "a chunk twice",
        "chunks that overlap",
        "cut short",
        "a wrong digest",
    ],
)
def test_frames_that_do_not_fit(victim, sent):
    async def send():
        call, _ = await victim.stream()
        await call.write(sent)
        return await victim.answer(call)

    assert victim(send()).kind is Kind.REFUSE
    assert counts(victim)["broken frame"] == 1


def test_connections_that_say_nothing_at_all(victim):
    """Bare TCP connections, many of them: they cost descriptors of the attacker, and the node serves its peers."""
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(socket.create_connection(("127.0.0.1", victim.wire.port)))
        _, answer = victim(victim.stream())
        assert answer.kind is Kind.WELCOME


def test_a_lane_of_a_link_that_is_not_there(victim):
    async def alone():
        return (await victim.stream(lane=1, link=7))[1], (await victim.stream(link=7))[1], await victim.stream(lane=1)

    without, first, (_, other) = victim(alone())
    assert without.kind is other.kind is Kind.REFUSE and b"has ended" in without.head
    assert first.kind is Kind.WELCOME


def test_lanes_that_nobody_asked_for_or_could_open(victim):
    async def alone():
        await victim.stream(you_send=True, link=7)
        asks, _ = await victim.stream(link=8)
        await asks.write(whole(Frame(Kind.LANE, 1)))
        return (await victim.stream(you_send=True, lane=1, link=7))[1], await victim.answer(asks)

    offered, asked = victim(alone())
    assert offered.kind is asked.kind is Kind.REFUSE
    assert b"nobody asked for this lane" in offered.head and b"asks for lane 1, which is not to be had" in asked.head


def test_a_lane_brings_chunks_of_opened_messages_and_nothing_else(victim):
    async def chunks_first():
        first, _ = await victim.stream(link=7)
        lane, _ = await victim.stream(lane=1, link=7)
        rest = [Frame(Kind.CHUNK, 2, 2, body=b"45", seq=1, offset=3, total=5), Frame(Kind.END, 2, 2, seq=2, total=5)]
        rest[1] = dataclasses.replace(rest[1], digest=xxhash.xxh3_64_intdigest(b"12345"))
        await lane.write(whole(*rest, Frame(Kind.CHUNK, 2, 2, body=b"123", total=5)))
        await lane.write(whole(Frame(Kind.CHUNK, 1, 2, body=b"x", total=5)))  # of one that was cancelled
        await first.write(whole(Frame(Kind.CANCEL, 1, 2)) + opened(5, transfer=2))
        arrived = await victim.answer(lane)
        await lane.write(opened(5, transfer=3))
        return arrived, await victim.answer(lane)

    arrived, refusal = victim(chunks_first())
    assert arrived.kind is Kind.ACK and arrived.transfer == 2
    assert refusal.kind is Kind.REFUSE and b"of kind OPEN by lane 1" in refusal.head
    assert bytes(wait_for(victim.wire, Received).payload) == b"12345"
