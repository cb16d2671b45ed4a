"""A node's certificate is renewed over its control stream: new connections show the new one, old ones live on."""

import contextlib
import time

import pytest
from numbered import number_of, numbered
from stub_coordinator import StubCoordinator
from wires import Nodes, receive, wait_for

from farflung.node.device import identity
from farflung.node.wire.events import PeerLost, Received
from farflung.proto.control_pb2 import Certificate
from farflung.proto.data_pb2 import Kind


class TooSlow(Exception):
    """The certificate had ended before there was anything to see: the machine is busy."""


@pytest.mark.parametrize("renewed", [True, False], ids=["renewed", "not renewed"])
def test_a_certificate_of_seconds(renewed, authority, certificates):
    for life in (5.0, 20.0, 80.0):
        with contextlib.suppress(TooSlow), contextlib.closing(Nodes(False, None)) as nodes:
            return live_and_outlive(life, renewed, authority, certificates, nodes)
    pytest.fail("no certificate lived long enough")


def live_and_outlive(life, renewed, authority, certificates, nodes):
    """a has a certificate of ``life`` seconds, and connections from before and after its end."""

    def sign(request, seconds):
        return authority.sign(request, "a", seconds)[0]

    def still_good():
        if time.monotonic() - began > 0.9 * life:
            raise TooSlow

    key = identity.make_key()
    with contextlib.closing(StubCoordinator((authority.certificate, authority.key))) as coordinator:
        began = time.monotonic()
        a = nodes.start(
            "a",
            coordinator=coordinator.address,
            secret="s",
            authority=authority.nodes,
            pinned=authority.certificate,
            certificate=sign(identity.certificate_request(key, "a"), life),
            key=key,
            certificate_life=life,
        )
        b = nodes.start("b", **certificates("b"))
        nodes.enter(1)
        a.send("b", numbered(Kind.STATE, 1), b"x")
        b.send("a", numbered(Kind.STATE, 1), b"x")
        events = [wait_for(wire, lambda event: isinstance(event, Received | PeerLost)) for wire in (a, b)]
        still_good()
        assert [event.sender for event in events] == ["b", "a"]
        asked = coordinator.wait("renew")[0]
        assert time.monotonic() - began > life / 2
        if renewed:
            made = sign(asked.certificate_request, 600.0)
            coordinator.order(certificate=Certificate(certificate=made, life=600.0))
            still_good()
            # The old connections, and then, when the first certificate has ended, new ones in both directions.
            time.sleep(max(0.0, life + 0.5 - (time.monotonic() - began)))
            a.send("b", numbered(Kind.STATE, 2), b"x")
            assert number_of(receive(b)[0].header) == 2
        else:
            time.sleep(max(0.0, life + 1.0 - (time.monotonic() - began)))
        c = nodes.start("c", **certificates("c"))
        nodes.enter(2)
        a.send("c", numbered(Kind.STATE, 3), b"x")
        c.send("a", numbered(Kind.STATE, 3), b"x")
        if renewed:
            assert receive(c)[0].sender == "a" and receive(a)[0].sender == "c"
        else:
            assert wait_for(c, PeerLost).peer == "a" and wait_for(a, PeerLost).peer == "c"
