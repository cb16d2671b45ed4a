"""How many bulk connections a link gets, what the kernel is asked for, and that urgent messages don't wait for bulk."""

import socket
import sys
import time

import numpy as np
import pytest
from numbered import numbered
from wires import receive

from farflung.node.peers.lanes import LEAST_CHUNK, MOST, ahead, lanes_wanted
from farflung.node.peers.tcp_info import TcpFigures, connected_to, figures, keep_unsent_short
from farflung.proto.connections.rpc import CHUNK
from farflung.proto.data_pb2 import Kind


def seen(**changes):
    """One second of sending without anything that holds it up."""
    known = {"busy_s": 1.0, "sent": 10_000_000, "rtt_s": 0.1, "least_rtt_s": 0.1, "congestion": "cubic"}
    return TcpFigures(**{**known, **changes})


@pytest.mark.parametrize(
    ("figures", "more", "why"),
    [
        (seen(), 0, ""),
        (seen(held_up_s=0.5), 1, "socket buffers held it up for 50% of the time"),
        (seen(busy_s=0.1, held_up_s=0.1), 0, ""),
        (seen(held_up_s=0.5, rtt_s=0.15), 0, ""),
        (seen(resent=10_000), 1, "cubic with 0.10% lost and no queue"),
        (seen(resent=10_000, rtt_s=0.15), 0, ""),
        (seen(resent=10_000, congestion="bbr"), 0, ""),
    ],
    ids=["nothing", "buffers", "too short", "a queue already", "loss", "its own queue", "bbr stands loss"],
)
def test_what_makes_for_another_connection(figures, more, why):
    assert lanes_wanted(1, figures) == (1 + more, why)
    assert lanes_wanted(MOST, figures) == (MOST, "")
    assert lanes_wanted(2, figures, gained=1.02) == (2, ""), "the second was of no use"
    assert lanes_wanted(2, figures, gained=1.5) == (2 + more, why)


def test_slow_links_hold_little_ahead():
    assert ahead(0) == ahead(10e9) == (CHUNK, CHUNK)
    assert ahead(100e6) == (250_000, 250_000)
    assert ahead(1e6) == (LEAST_CHUNK, LEAST_CHUNK)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's figures are Linux'")
def test_the_kernels_figures():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
    ):
        found = connected_to({server.getsockname()})
        try:
            (mine,) = found
            assert mine.getsockname() == one.getsockname() and mine.fileno() != one.fileno()
            keep_unsent_short(mine, 1 << 20)
            before = figures(found)
            one.sendall(bytes(100_000))
            left = 100_000
            while left:
                left -= len(other.recv(left))
            grown = figures(found).since(before)
            assert grown.sent == 100_000 and grown.congestion
            assert 0 < grown.least_rtt_s <= grown.rtt_s and grown.rate_bps > 0
        finally:
            for sock in found:
                sock.close()
    assert figures(found) == figures([]) == TcpFigures()


def test_large_messages_come_whole_and_in_order_over_several_connections(thread_nodes, monkeypatch):
    monkeypatch.setattr("farflung.node.peers.sending.bulk.lanes_wanted", lambda *_: (3, "the test wants it"))
    monkeypatch.setattr("farflung.node.peers.sending.bulk.LEAST_BUSY", 0.0)
    monkeypatch.setattr("farflung.node.peers.sending.bulk.LOOK_SECONDS", 0.05)
    a, b = thread_nodes.start("a"), thread_nodes.start("b")
    thread_nodes.enter(1)
    payload = np.random.default_rng(0).integers(0, 256, 9_000_000, dtype=np.uint8)
    sizes = [9_000_000, 10, 70_000, 40_000, 5_000_000, 300]
    address = ("127.0.0.1", b.port)
    deadline = time.monotonic() + 60
    most = rounds = 0
    while most < 4 and time.monotonic() < deadline:
        rounds += 1
        for size in sizes:
            a.send("b", numbered(Kind.STATE), payload[:size])
        for message, size in zip(receive(b, len(sizes), 60), sizes, strict=True):
            assert np.array_equal(message.payload, payload[:size])
        a.poll()
        connections = connected_to({address})
        most = max(most, len({one.getsockname() for one in connections}))
        for one in connections:
            one.close()
    assert most == 4 or sys.platform != "linux", f"{most} connections after {rounds} rounds"
