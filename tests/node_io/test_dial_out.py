"""Nodes that nobody can dial: they open the streams of both directions, and two of them meet at the coordinator."""

import contextlib
import time

import numpy as np
import pytest
from cable import Cable
from numbered import number_of, numbered
from stub_coordinator import StubCoordinator
from wires import behind_nat, kill, payload_of, receive, wait_for

from farflung.coordinator.serve.calls import relay as relay_module
from farflung.node.peers import greeting
from farflung.node.wire.events import PeerLost, Received
from farflung.proto.data_pb2 import Kind


def exchange(one, other, names, count=9):
    """Both send all sizes to each other; all arrive, in order, whole."""
    for wire, to in ((one, names[1]), (other, names[0])):
        for number in range(count):
            wire.send(to, numbered(Kind.STATE, number, view=1), payload_of(number), priority=1)
    for wire in (one, other):
        got = receive(wire, count, 60)
        assert [number_of(message.header) for message in got] == list(range(count))
        assert all(np.array_equal(message.payload, payload_of(number_of(message.header))) for message in got)


@pytest.mark.parametrize("order", ["dialler first", "dialler last"])
def test_both_directions_of_one_that_dials_out(secure_nodes, order):
    a, b = secure_nodes.start("a"), secure_nodes.start("b", dials_out=True)
    members = behind_nat(secure_nodes, "b")
    for wire in (b, a) if order == "dialler first" else (a, b):
        wire.enter(1, members)
        time.sleep(0.5)
    exchange(a, b, "ab")
    sent = a.statistics()
    assert 9_000_000 < sent["other"] < 9_500_000  # counted as on any link


def test_an_urgent_message_overtakes(thread_nodes):
    a = thread_nodes.start("a", max_upload=160e6)  # a second for what is to be overtaken
    b = thread_nodes.start("b", dials_out=True)
    for wire in (a, b):
        wire.enter(1, behind_nat(thread_nodes, "b"))
    a.send("b", numbered(Kind.STATE, 1, view=1), bytes(20_000_000), priority=2)
    a.send("b", numbered(Kind.ACTIVATION, 2, view=1), bytes(10_000), priority=0)
    assert [number_of(message.header) for message in receive(b, 2)] == [2, 1]


def test_a_broken_stream_is_told_and_what_was_lost_goes_again(thread_nodes):
    """What a sends to b comes through the cable, on the stream that b opened."""
    a, b = thread_nodes.start("a"), thread_nodes.start("b", dials_out=True)
    with contextlib.closing(Cable(f"127.0.0.1:{a.port}")) as cable:
        members = behind_nat(thread_nodes, "b")
        a.enter(1, members)
        members[0].address = cable.address
        b.enter(1, members)
        lost, got = [], []
        for number in range(12):
            a.send("b", numbered(Kind.STATE, number, view=1), payload_of(number), priority=1)
            if number % 4 == 3:
                time.sleep(0.2)
                cable.cut()
        deadline = time.monotonic() + 60
        while len(got) < 12 and time.monotonic() < deadline:
            got += [event for event in b.poll(0.1) if isinstance(event, Received)]
            lost += [event for event in a.poll() if isinstance(event, PeerLost)]
        assert [number_of(message.header) for message in got] == list(range(12))
        assert all(np.array_equal(message.payload, payload_of(number_of(message.header))) for message in got)
        assert lost and lost[0].peer == "b"
        thread_nodes.close()


def test_a_killed_dialler_is_lost_at_once(processes):
    a, b = processes.start("a"), processes.start("b", dials_out=True)
    for wire in (a, b):
        wire.enter(1, behind_nat(processes, "b"))
    exchange(a, b, "ab", 2)
    kill(b)
    assert wait_for(a, PeerLost).peer == "b"


def test_one_that_never_dials_is_lost(thread_nodes, monkeypatch):
    monkeypatch.setattr(greeting, "GREETING_TIMEOUT", 1.0)
    a, _ = thread_nodes.start("a"), thread_nodes.start("b", dials_out=True)
    a.enter(1, behind_nat(thread_nodes, "b"))
    assert wait_for(a, PeerLost).why == "b can't be dialled and has not dialled for 1 s"


def test_a_restarted_dialler_takes_the_place_of_its_earlier_session(thread_nodes):
    a, b = thread_nodes.start("a"), thread_nodes.start("b", dials_out=True)
    for wire in (a, b):
        wire.enter(1, behind_nat(thread_nodes, "b"))
    exchange(a, b, "ab", 2)
    b.close("")
    b = thread_nodes.start("b", session="b-2", dials_out=True)
    for wire in (a, b):
        wire.enter(2, behind_nat(thread_nodes, "b"))
    a.send("b", numbered(Kind.STATE, 7, view=2), b"to the new one")
    assert bytes(receive(b)[0].payload) == b"to the new one"


def test_both_directions_are_measured(thread_nodes):
    """Both are told of each other, and measure at the same time."""
    a, b = thread_nodes.start("a"), thread_nodes.start("b", dials_out=True)
    members = behind_nat(thread_nodes, "b")
    b.enter(1, members)  # opens its streams
    (there,), (back,) = a.measure(members[1:]).links, b.measure(members[:1]).links
    assert there.bandwidth_bps > 1e7 and back.bandwidth_bps > 1e7
    assert there.latency_s > 0


@pytest.fixture
def relay():
    with contextlib.closing(StubCoordinator()) as made:
        yield made


def test_two_that_dial_out_meet_at_the_coordinator(relay, nodes):
    """The third end, c, is reachable: all three talk."""
    a, b = (nodes.start(name, dials_out=True, coordinator=relay.address, secret="x") for name in "ab")
    c = nodes.start("c")
    relay.wait("hello", 2)  # it knows both by then
    members = behind_nat(nodes, "a", "b")
    for wire in (a, b, c):
        wire.enter(1, members)
    exchange(a, b, "ab")
    exchange(a, c, "ac", 3)
    assert relay.relayed_bytes > 15_000_000
    (there,) = a.measure([member for member in members if member.name == "b"]).links
    assert there.bandwidth_bps > 1e6


def test_only_what_is_needed_is_opened_and_relayed(relay, thread_nodes):
    """Of two that dial out and two that can be dialled, each needs one other; then the two that dial out."""
    a, b = (thread_nodes.start(name, dials_out=True, coordinator=relay.address, secret="x") for name in "ab")
    c, d = thread_nodes.start("c"), thread_nodes.start("d")
    relay.wait("hello", 2)
    members = behind_nat(thread_nodes, "a", "b")
    for wire, needed in ((a, ["c"]), (b, ["d"]), (c, ["a"]), (d, ["b"])):
        wire.enter(1, members, needed)
    exchange(a, c, "ac", 3)
    exchange(b, d, "bd", 3)
    assert not relay.relayed_bytes and not relay.relay._waiting
    for wire, needed in ((a, ["b"]), (b, ["a"])):
        wire.enter(2, members, needed)
    for wire, to in ((a, "b"), (b, "a")):
        wire.send(to, numbered(Kind.STATE, 9, view=2), b"now")
    for wire in (a, b):
        assert number_of(receive(wire)[0].header) == 9
    assert relay.relayed_bytes


def test_the_relay_serves_only_sessions_of_the_run(relay, thread_nodes):
    a = thread_nodes.start("a", dials_out=True, coordinator=relay.address, secret="wrong")
    thread_nodes.start("b", dials_out=True)
    relay.knows = lambda *session: False
    a.enter(1, behind_nat(thread_nodes, "a", "b"))
    assert "the session of a is over, or another's" in wait_for(a, PeerLost).why


def test_a_peer_that_does_not_come_to_the_relay(relay, thread_nodes, monkeypatch):
    monkeypatch.setattr(relay_module, "PATIENCE_S", 0.5)
    a = thread_nodes.start("a", dials_out=True, coordinator=relay.address, secret="x")
    thread_nodes.start("b", dials_out=True)
    a.enter(1, behind_nat(thread_nodes, "a", "b"))
    assert "b has not come to the relay" in wait_for(a, PeerLost).why


def test_a_relayed_stream_that_breaks_goes_on(relay, thread_nodes):
    a, b = (thread_nodes.start(name, dials_out=True, coordinator=relay.address, secret="x") for name in "ab")
    relay.wait("hello", 2)
    for wire in (a, b):
        wire.enter(1, behind_nat(thread_nodes, "a", "b"))
    exchange(a, b, "ab", 2)
    b.close("")
    assert wait_for(a, PeerLost).peer == "b"
    b = thread_nodes.start("b", dials_out=True, coordinator=relay.address, secret="x")
    b.enter(1, behind_nat(thread_nodes, "a", "b"))
    a.send("b", numbered(Kind.STATE, 5, view=1), b"again")
    message = wait_for(b, lambda event: isinstance(event, Received))
    assert bytes(message.payload) == b"again"
