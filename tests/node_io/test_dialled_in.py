"""Bulk towards a node that nobody can dial goes by connections of its own, which that node opens when it is asked."""

import socket
import sys
import time

import numpy as np
import pytest
from numbered import number_of, numbered
from wires import accepted, receive, wait_for

from farflung.node.peers.receiving import dial_out as offers
from farflung.node.peers.tcp_info import figures
from farflung.node.wire.events import PeerLost, Received
from farflung.proto.control_pb2 import Member
from farflung.proto.data_pb2 import Kind

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="connections are found as Linux shows them")

BULK = np.random.default_rng(0).integers(0, 256, 20_000_000, dtype=np.uint8)
CONNECTIONS = 3
"""b's own link to a, the first stream for a to send on, and the one for bulk."""


def begin(nodes):
    """a, and b which dials out, in a view."""
    a, b = nodes.start("a"), nodes.start("b", dials_out=True)
    members = [
        Member(name="a", session="a-1", address=f"127.0.0.1:{a.port}"),
        Member(name="b", session="b-1", address="127.0.0.1:1", dials_out=True),
    ]
    for wire in (a, b):
        wire.enter(1, members)
    return a, b


def sent(connections):
    return {address: figures([one]).sent for address, one in connections.items()}


def until(a, count):
    """Waits for so many connections."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with accepted(a.port) as connections:
            if len(connections) == count:
                return
        time.sleep(0.05)
    raise AssertionError(f"{len(connections)} connections, not {count}")


def way_of(a, b, connections, size):
    """The connection by which a message of so many bytes goes from a to b."""
    before = sent(connections)
    a.send("b", numbered(Kind.STATE), BULK[:size], priority=2)
    assert np.array_equal(receive(b, timeout=60)[0].payload, BULK[:size])
    return max(connections, key=lambda port: sent(connections)[port] - before[port])


def bulk_lane(a, b, connections):
    """Which of them carries bulk, once a has one for it: not the one by which all else goes."""
    first, deadline = way_of(a, b, connections, 20_000), time.monotonic() + 60
    while time.monotonic() < deadline:
        if (lane := way_of(a, b, connections, 3_000_000)) != first:
            return lane
    raise AssertionError("bulk goes by the first connection")


def with_a_lane(nodes):
    """a and b; there has been bulk."""
    a, b = begin(nodes)
    a.send("b", numbered(Kind.STATE), BULK[:100_000])
    receive(b)
    until(a, CONNECTIONS)
    return a, b


def test_what_is_urgent_goes_by_another_connection_than_bulk(thread_nodes):
    a, b = with_a_lane(thread_nodes)
    with accepted(a.port) as connections:
        lane = bulk_lane(a, b, connections)
        connections[lane].setsockopt(socket.SOL_SOCKET, 47, 200_000)  # SO_MAX_PACING_RATE, bytes a second
        before = sent(connections)
        a.send("b", numbered(Kind.STATE, 1), BULK, priority=2)
        a.send("b", numbered(Kind.ACTIVATION, 2), BULK[:20_000], priority=0)
        assert number_of(receive(b, timeout=60)[0].header) == 2
        grown = {address: now - before[address] for address, now in sent(connections).items()}
        assert grown.pop(lane) < 15_000_000, "bulk is still on its way"
        assert 20_000 < max(grown.values()) < 100_000
        connections[lane].setsockopt(socket.SOL_SOCKET, 47, 1_000_000_000)
    assert np.array_equal(receive(b, timeout=60)[0].payload, BULK)


@pytest.mark.parametrize("cut", ["bulk", "first"])
def test_connections_of_a_link_end_together_and_everything_arrives(thread_nodes, cut):
    a, b = with_a_lane(thread_nodes)
    with accepted(a.port) as connections:
        lane = bulk_lane(a, b, connections)
        connections[lane].setsockopt(socket.SOL_SOCKET, 47, 200_000)
        before = sent(connections)
        a.send("b", numbered(Kind.STATE, 1), BULK, priority=2)
        a.send("b", numbered(Kind.ACTIVATION, 2), BULK[:20_000], priority=0)
        assert number_of(receive(b, timeout=60)[0].header) == 2
        grown = {address: now - before[address] for address, now in sent(connections).items() if address != lane}
        connections[lane if cut == "bulk" else max(grown, key=grown.get)].shutdown(socket.SHUT_RDWR)
    assert wait_for(a, PeerLost).peer == "b"
    message = wait_for(b, Received)
    assert number_of(message.header) == 1 and np.array_equal(message.payload, BULK)
    until(a, CONNECTIONS)
    assert b.poll(0.3) == []


def test_several_for_bulk(thread_nodes, monkeypatch):
    monkeypatch.setattr("farflung.node.peers.sending.bulk.lanes_wanted", lambda *_: (3, "the test wants it"))
    monkeypatch.setattr("farflung.node.peers.sending.bulk.LEAST_BUSY", 0.0)
    monkeypatch.setattr("farflung.node.peers.sending.bulk.LOOK_SECONDS", 0.05)
    a, b = begin(thread_nodes)
    a.send("b", numbered(Kind.STATE), BULK[:5_000_000])
    receive(b)
    until(a, CONNECTIONS + 2)
    for size in (5_000_000, 10, 70_000):
        a.send("b", numbered(Kind.STATE), BULK[:size])
        assert np.array_equal(receive(b)[0].payload, BULK[:size])


def test_a_peer_that_opens_no_lanes_is_asked_for_none(thread_nodes, monkeypatch):
    monkeypatch.setattr(offers.random, "randrange", lambda *_: 0)  # as it greeted before
    a, b = begin(thread_nodes)
    for size in (5_000_000, 10, 70_000):
        a.send("b", numbered(Kind.STATE), BULK[:size])
        assert np.array_equal(receive(b)[0].payload, BULK[:size])
    with accepted(a.port) as connections:
        assert len(connections) == CONNECTIONS - 1
