"""Connections that break or spoil bytes while both ends live: everything arrives, once, whole, in order."""

import contextlib
import logging
import time

import numpy as np
import pytest
from cable import Cable
from numbered import number_of, numbered
from wires import Nodes, descriptors, wait_for

from farflung.node.wire.events import PeerLost, Received
from farflung.proto.data_pb2 import Kind


@contextlib.contextmanager
def through_a_cable(nodes):
    """a and b in one view; what a sends to b goes through the cable."""
    a, b = nodes.start("a"), nodes.start("b")
    with contextlib.closing(Cable(f"127.0.0.1:{b.port}")) as cable:
        members = nodes.members()
        members[1].address = cable.address
        a.enter(1, members)
        b.enter(1, members)
        try:
            yield a, b, cable
        finally:
            nodes.close()


def collect(wire, count, timeout=120):
    """(messages, lost peers)"""
    messages, lost = [], []
    deadline = time.monotonic() + timeout
    while len(messages) < count and time.monotonic() < deadline:
        for event in wire.poll(0.1):
            (messages if isinstance(event, Received) else lost).append(event)
    return messages, lost


def payload_of(number):
    return np.random.default_rng(number).integers(0, 256, [10, 70_000, 3_000_000][number % 3], dtype=np.uint8)


@pytest.mark.parametrize("secure", [False, True], ids=["insecure", "tls"])
@pytest.mark.parametrize("cut_at", [20_000, 4_000_000, 9_500_000])
def test_what_was_cut_goes_again_and_arrives_once(certificates, secure, cut_at):
    nodes = Nodes(False, certificates if secure else None)
    with through_a_cable(nodes) as (a, b, cable):
        cable.cut_at = cut_at
        for number in range(12):
            a.send("b", numbered(Kind.STATE, number), payload_of(number), priority=1)
        messages, lost = collect(b, 12)
        assert [number_of(message.header) for message in messages] == list(range(12))
        for message in messages:
            assert np.array_equal(message.payload, payload_of(number_of(message.header)))
        assert not lost and b.poll(0.3) == []
        assert wait_for(a, PeerLost).peer == "b"
        assert cable.cut_at is None


def test_cut_again_and_again(thread_nodes):
    with through_a_cable(thread_nodes) as (a, b, cable):
        for number in range(40):
            a.send("b", numbered(Kind.STATE, number), payload_of(number), priority=number % 3)
            if number % 8 == 7:
                time.sleep(0.1)
                cable.cut()
        messages, _ = collect(b, 40)
        for priority in range(3):
            steps = [number_of(message.header) for message in messages if number_of(message.header) % 3 == priority]
            assert steps == list(range(priority, 40, 3))
        assert b.poll(0.3) == []


def test_a_flipped_bit_never_reaches_the_trainer(thread_nodes):
    with through_a_cable(thread_nodes) as (a, b, cable):
        cable.flip_at = 5_000_000
        payload = np.random.default_rng(0).integers(0, 256, 20_000_000, dtype=np.uint8)
        a.send("b", numbered(Kind.STATE), payload)
        messages, _ = collect(b, 1)
        assert np.array_equal(messages[0].payload, payload) and cable.flip_at is None
        assert "refused the stream: has a wrong checksum" in wait_for(a, PeerLost).why
        assert b.statistics()["broken frame"] == 1


def test_an_address_that_another_node_has_by_now(thread_nodes):
    """c has taken over b's port: it is not believed to be b."""
    a, b = thread_nodes.start("a"), thread_nodes.start("b")
    members = thread_nodes.members()
    b.close("")
    thread_nodes.start("c", listen=f"127.0.0.1:{members[1].address.rpartition(':')[2]}")
    a.enter(1, members)
    assert "wants b, but this is c" in wait_for(a, PeerLost).why


def test_a_peer_that_has_restarted(thread_nodes):
    a, b = thread_nodes.start("a"), thread_nodes.start("b")
    members = thread_nodes.members()
    b.close("")
    thread_nodes.start("b", session="b-2", listen=f"127.0.0.1:{members[1].address.rpartition(':')[2]}")
    a.enter(1, members)
    assert "wants an earlier session of b, which has restarted" in wait_for(a, PeerLost).why
    assert a.poll(1.0) == []  # said once


def test_a_node_that_leaves_while_it_is_sent_to_leaves_no_line_in_a_log(thread_nodes, caplog):
    a, b = thread_nodes.start("a"), thread_nodes.start("b")
    thread_nodes.enter(1)
    a.send("b", numbered(Kind.STATE), b"here")
    collect(b, 1)
    for _ in range(4):
        a.send("b", numbered(Kind.STATE), np.zeros(16 << 20, np.uint8))
    b.close("")
    wait_for(a, PeerLost, timeout=120)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_strangers_at_the_port_do_no_harm(thread_nodes):
    import socket

    a, b = thread_nodes.start("a"), thread_nodes.start("b")
    for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 20):
        with socket.create_connection(("127.0.0.1", b.port)) as stranger:
            stranger.sendall(noise)
    thread_nodes.enter(1)
    a.send("b", numbered(Kind.STATE), b"still here")
    assert bytes(collect(b, 1)[0][0].payload) == b"still here"


@pytest.mark.slow
def test_sixty_breaks_leak_nothing(thread_nodes):
    with through_a_cable(thread_nodes) as (a, b, cable):
        for number in range(60):
            a.send("b", numbered(Kind.STATE, number), payload_of(2))
            collect(b, 1)
            a.poll()
            cable.cut()
            if number == 10:
                before = len(descriptors())
        assert len(descriptors()) <= before + 6
        deadline = time.monotonic() + 60
        while a._blocks.sending.in_use > 8192 and time.monotonic() < deadline:  # the last one may go once more
            a.poll(0.1)
        assert a._blocks.sending.in_use <= 8192


@pytest.mark.slow
def test_a_silent_hole_is_noticed_and_left(thread_nodes):
    """No FIN, no RST, and TCP still answers: pings notice, and what was sent meanwhile arrives afterwards."""
    with through_a_cable(thread_nodes) as (a, b, cable):
        a.send("b", numbered(Kind.STATE), b"1")
        collect(b, 1)
        cable.frozen = True
        a.send("b", numbered(Kind.STATE), b"2")
        begin = time.monotonic()
        assert wait_for(a, PeerLost, timeout=35).peer == "b"
        assert time.monotonic() - begin < 25
        cable.frozen = False
        assert bytes(collect(b, 1)[0][0].payload) == b"2"
