"""Nodes hear nothing more of one that was evicted, although its certificate is good for a day."""

import contextlib
import time

from numbered import number_of, numbered
from stub_coordinator import StubCoordinator
from wires import receive, wait_for

from farflung.node.wire.events import PeerLost
from farflung.proto.control_pb2 import Revoked
from farflung.proto.data_pb2 import Kind


def test_an_evicted_name_is_refused(authority, certificates, thread_nodes):
    with contextlib.closing(StubCoordinator((authority.certificate, authority.key))) as coordinator:
        a = thread_nodes.start("a", coordinator=coordinator.address, secret="s", **certificates("a"))
        b = thread_nodes.start("b", **certificates("b"))
        c = thread_nodes.start("c", **certificates("c"))
        thread_nodes.enter(1)
        for wire in (b, c):
            wire.send("a", numbered(Kind.STATE, 1), b"x")
        assert {message.sender for message in receive(a, 2)} == {"b", "c"}
        coordinator.order(revoked=Revoked(nodes=["b"]))

        def dropped():
            return a.statistics().get("from an evicted node", 0)

        def wait_for_more(than):
            deadline = time.monotonic() + 60
            while dropped() <= than:
                assert time.monotonic() < deadline, "nothing of b is dropped"
                time.sleep(0.05)

        while not dropped():
            b.send("a", numbered(Kind.STATE, 2), b"x")  # the view still has it
            time.sleep(0.1)
        before = dropped()
        b.send("a", numbered(Kind.STATE, 9), b"x")
        wait_for_more(before)
        c.send("a", numbered(Kind.STATE, 3), b"x")
        heard = []
        while "c" not in [sender for sender, _ in heard]:
            heard += [(message.sender, number_of(message.header)) for message in receive(a, 1, 60)]
        assert ("b", 9) not in heard
        # A new stream of it is not even greeted.
        b.close("")
        again = thread_nodes.start("b", session="b-2", **certificates("b"))
        thread_nodes.enter(2)
        assert "b was evicted from the run" in wait_for(again, lambda event: isinstance(event, PeerLost)).why
