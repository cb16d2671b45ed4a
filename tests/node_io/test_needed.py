"""Connections that a node needs, and those that it does not: who is told of a break, and of its end."""

import contextlib

import pytest
from cable import Cable
from numbered import number_of, numbered
from stub_coordinator import StubCoordinator
from wires import accepted, receive, wait_for

from farflung.node.wire.events import PeerLost
from farflung.proto.data_pb2 import Kind


@pytest.fixture
def coordinator():
    with contextlib.closing(StubCoordinator()) as stub:
        yield stub


def evidence(coordinator, count):
    return [(one.peer, one.mended) for one in coordinator.wait("evidence", count)]


def test_a_break_of_a_needed_connection_is_told_and_so_is_its_end(coordinator, thread_nodes):
    a = thread_nodes.start("a", coordinator=coordinator.address, secret="s")
    b = thread_nodes.start("b")
    with contextlib.closing(Cable(f"127.0.0.1:{b.port}")) as cable:
        members = thread_nodes.members()
        members[1].address = cable.address
        a.enter(1, members, ["b"])
        b.enter(1, members, ["a"])
        a.send("b", numbered(Kind.STATE, 1), b"x")
        receive(b)
        cable.cut()
        assert evidence(coordinator, 2) == [("b", False), ("b", True)]
        a.send("b", numbered(Kind.STATE, 2), b"x")
        assert number_of(receive(b)[0].header) == 2
        thread_nodes.close()


def test_what_is_not_needed_is_not_connected_until_something_is_sent(coordinator, thread_nodes):
    a = thread_nodes.start("a", coordinator=coordinator.address, secret="s")
    b, c = thread_nodes.start("b"), thread_nodes.start("c")
    with contextlib.closing(Cable(f"127.0.0.1:{c.port}")) as cable:
        members = thread_nodes.members()
        members[2].address = cable.address
        a.enter(1, members, ["b"])
        for wire in (b, c):
            wire.enter(1, members, ["a"] if wire is b else [])
        a.send("b", numbered(Kind.STATE, 1), b"x")
        receive(b)
        with accepted(c.port) as there:
            assert not there
        a.send("c", numbered(Kind.STATE, 2), b"y")
        assert number_of(receive(c)[0].header) == 2, "it may be asked for state all the same"
        cable.cut()
        assert wait_for(a, PeerLost).peer == "c"
        a.send("c", numbered(Kind.STATE, 3), b"z")
        assert number_of(receive(c)[0].header) == 3
        assert not [one for one in coordinator.kinds() if one == "evidence"], "nobody else need know"
        thread_nodes.close()
