"""A node's certificate is renewed over its control stream: new connections show the new one, old ones live on."""

import contextlib
import time

import pytest
from stub_coordinator import StubCoordinator
from wires import receive, wait_for

from farflung.node.device import identity
from farflung.node.wire.client import PeerLost
from farflung.proto.control_pb2 import Certificate
from farflung.proto.data_pb2 import Header, Kind

LIFE = 6.0


@pytest.mark.parametrize("renewed", [True, False], ids=["renewed", "not renewed"])
def test_a_certificate_of_seconds(renewed, authority, certificates, thread_nodes):
    def sign(request):
        return authority.sign(request, "a", LIFE)[0]

    key = identity.make_key()
    with contextlib.closing(StubCoordinator((authority.certificate, authority.key))) as coordinator:
        began = time.monotonic()
        a = thread_nodes.start(
            "a",
            coordinator=coordinator.address,
            secret="s",
            authority=authority.nodes,
            pinned=authority.certificate,
            certificate=sign(identity.certificate_request(key, "a")),
            key=key,
            certificate_life=LIFE,
        )
        b = thread_nodes.start("b", **certificates("b"))
        thread_nodes.enter(1)
        a.send("b", Header(kind=Kind.STATE, step=1), b"x")
        b.send("a", Header(kind=Kind.STATE, step=1), b"x")
        assert receive(a)[0].sender == "b" and receive(b)[0].sender == "a"
        asked = coordinator.wait("renew")[0]
        assert LIFE / 2 < time.monotonic() - began < LIFE
        if renewed:
            made = sign(asked.certificate_request)
            coordinator.order(certificate=Certificate(certificate=made, life=LIFE))
            # The old connections, and then, when the first certificate has ended, new ones in both directions.
            time.sleep(max(0.0, LIFE + 0.5 - (time.monotonic() - began)))
            a.send("b", Header(kind=Kind.STATE, step=2), b"x")
            assert receive(b)[0].header.step == 2
        else:
            time.sleep(LIFE + 1.0 - (time.monotonic() - began))
        c = thread_nodes.start("c", **certificates("c"))
        thread_nodes.enter(2)
        a.send("c", Header(kind=Kind.STATE, step=3), b"x")
        c.send("a", Header(kind=Kind.STATE, step=3), b"x")
        if renewed:
            assert receive(c)[0].sender == "a" and receive(a)[0].sender == "c"
        else:
            assert wait_for(c, PeerLost).peer == "a" and wait_for(a, PeerLost).peer == "c"
