"""What a relay may do to those who meet at it, and what a member may do at the relay."""

import asyncio
import contextlib
import itertools
import time

import grpc
import numpy as np
import pytest
from numbered import number_of, numbered
from stub_coordinator import StubCoordinator
from wires import behind_nat, payload_of

from farflung.coordinator.serve.calls import relay as relay_module
from farflung.node.wire.events import Received
from farflung.proto.connections import rpc
from farflung.proto.data_pb2 import Greeting, Kind
from farflung.proto.messages import frame as frames
from farflung.proto.messages.frame import Frame


@pytest.fixture
def relay():
    with contextlib.closing(StubCoordinator()) as made:
        yield made


def flipped(message):
    changed = bytearray(message)
    changed[len(changed) // 2] ^= 4
    return [bytes(changed)]


ATTACKS = {
    "says twice": lambda message: [message, message],
    "changes": flipped,
    "cuts": lambda message: [message[: len(message) // 2]],
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_a_relay_does_to_messages_ends_the_stream_or_nothing_and_all_arrive_whole_and_once(
    attack, relay, thread_nodes, monkeypatch
):
    """Every seventh message of the relay's is attacked, fifteen times; then it has mercy."""
    count, left = itertools.count(1), iter(range(15))

    async def copy(self, source, sink):
        await sink.welcomed.wait()
        while (message := await source.read()) is not rpc.END:
            hostile = next(count) % 7 == 0 and next(left, None) is not None
            for one in ATTACKS[attack](message) if hostile else [message]:
                await sink.context.write(one)

    monkeypatch.setattr(relay_module.Relay, "_copy", copy)
    a, b = (thread_nodes.start(name, dials_out=True, coordinator=relay.address, secret="x") for name in "ab")
    relay.wait("hello", 2)
    for wire in (a, b):
        wire.enter(1, behind_nat(thread_nodes, "a", "b"))
    for number in range(9):
        a.send("b", numbered(Kind.STATE, number, view=1), payload_of(number), priority=1)
    got, deadline = [], time.monotonic() + 60
    while len(got) < 9 and time.monotonic() < deadline:  # a stream that ends is not the end of the link
        got += [event for event in b.poll(0.2) if isinstance(event, Received)]
    assert [number_of(one.header) for one in got] == list(range(9))
    assert all(np.array_equal(one.payload, payload_of(number_of(one.header))) for one in got)


def call(address, name, to, you_send=False):
    """The answer to one greeting at the relay: a frame, or None while it waits."""

    async def ask():
        channel = grpc.aio.insecure_channel(address)
        stream = rpc.peer_method(channel, rpc.session_metadata(name, f"{name}-1", "x"))
        hello = Greeting(run="run-1", name=name, session=f"{name}-1", to=to, to_session=f"{to}-1", you_send=you_send)
        await stream.write(b"".join(frames.encode(Frame(frames.Kind.HELLO, head=hello.SerializeToString()))))
        return stream, channel

    return ask()


def answer_of(message):
    return frames.decode(message)[0]


def test_nobody_meets_who_is_not_in_the_run_or_can_be_dialled(relay):
    relay.knows = lambda *session: True
    relay.relay._meets = lambda name, session: name in "ab"

    async def ask():
        found = []
        for name, to in (("a", "c"), ("a", "nobody"), ("c", "a"), ("a", "a")):
            stream, channel = await call(relay.address, name, to)
            found.append(answer_of(await stream.read()))
            await channel.close(None)
        return found

    assert all(one.kind is frames.Kind.REFUSE and b"do not meet here" in one.head for one in asyncio.run(ask()))
    assert not relay.relay._waiting


def test_a_member_holds_few_places_at_the_relay(relay):
    """Streams for sessions that do not exist wait in vain, and not many at a time."""
    relay.knows = lambda *session: True

    async def ask():
        streams = [await call(relay.address, "a", f"n{number}") for number in range(relay_module.MOST_WAITING + 3)]
        readers = [asyncio.ensure_future(stream.read()) for stream, _ in streams]
        done = set()
        while len(done) < 3:
            done, _ = await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED, timeout=9)
        waiting = len(relay.relay._waiting)
        said = [answer_of(reader.result()).head for reader in done]
        for reader in readers:
            reader.cancel()
        for _, channel in streams:
            await channel.close(None)
        return said, waiting

    said, waiting = asyncio.run(ask())
    assert waiting <= relay_module.MOST_WAITING and sum(b"wait at the relay" in one for one in said) == 3
