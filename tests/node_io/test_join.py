"""Joining: every way in which it can fail says what, where, and what to do; a success gives all that a node needs."""

import contextlib
import socket
import stat

import pytest
from join_answers import DEVICE, FACTS, JOB, RUN, TICKET
from ports import free_port
from stub_coordinator import StubCoordinator

from farflung.node.device import identity
from farflung.node.join import find, join
from farflung.node.wire.client import ProcessWire
from farflung.proto import PROTOCOL
from farflung.proto.control_pb2 import JoinReply
from farflung.proto.errors import FarflungError, Refused
from farflung.proto.words.link import NO_FINGERPRINT, Link


def link_to(coordinator, fingerprint=NO_FINGERPRINT, host="127.0.0.1"):
    return Link(host, coordinator.port, RUN, TICKET, fingerprint)


@pytest.fixture
def insecure():
    with contextlib.closing(StubCoordinator()) as stub:
        stub.join_reply = JoinReply(name="swift-otter", session="s1", secret="hush", job=JOB, facts=FACTS, term=3)
        yield stub


@pytest.fixture
def secure(authority):
    with contextlib.closing(StubCoordinator((authority.certificate, authority.key))) as stub:
        stub.join_reply = JoinReply(name="lab-3", session="s1", secret="hush", job=JOB, facts=FACTS, term=3)
        yield stub


def closed_port():
    return free_port()


def test_what_a_node_gets(insecure, tmp_path):
    joined = join(link_to(insecure), DEVICE, cache=tmp_path)
    assert (joined.name, joined.session, joined.secret, joined.term) == ("swift-otter", "s1", "hush", 3)
    assert joined.job.run.name == "small" and joined.facts.samples == 100
    request = insecure.joins[0]
    assert (request.run, request.ticket, request.protocol, request.name) == (RUN, TICKET, PROTOCOL, "")
    assert request.address == joined.address and request.device == DEVICE
    assert not joined.credentials.secure and not request.certificate_request
    assert "hush" not in repr(joined)
    wire = ProcessWire.start(joined.config, process=False)
    assert joined.address == f"127.0.0.1:{wire.port}"  # the port that the coordinator dialled back
    assert insecure.wait("hello")[0].session == "s1"
    wire.close("done")


@pytest.mark.parametrize(("advertise", "may"), [("", True), ("127.0.0.1", False)])
def test_a_node_dials_out_unless_its_address_was_given(insecure, tmp_path, advertise, may):
    insecure.join_reply.dials_out = may
    joined = join(link_to(insecure), DEVICE, advertise=advertise, cache=tmp_path)
    assert insecure.joins[0].may_dial_out is may
    assert joined.dials_out is joined.config.dials_out is may


def test_with_tls_the_key_stays_here_and_comes_back(secure, authority, tmp_path):
    link = link_to(secure, authority.fingerprint)

    def sign(request):
        certificate, digest = authority.sign(request.certificate_request, "lab-3")
        secure.join_reply.certificate = certificate
        return digest

    secure.join_reply.certificate, secure.join_reply.authority, key = b"to be signed", authority.nodes, None
    for _ in range(2):
        joined = join(link, DEVICE, name="lab-3", cache=tmp_path)
        digest = sign(secure.joins[-1])
        assert key in (None, joined.credentials.key) and digest
        key = joined.credentials.key
    assert b"PRIVATE" in key and key not in secure.joins[0].SerializeToString()
    path = next(tmp_path.rglob("lab-3.key"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert joined.credentials.pinned.strip() == authority.certificate.strip()
    assert joined.credentials.authority == authority.nodes


def test_a_name_that_does_not_resolve():
    with pytest.raises(FarflungError, match=r"name no-such-host\.invalid does not resolve") as caught:
        find(Link("no-such-host.invalid", 7070, RUN, TICKET))
    assert caught.value.hint and caught.value.status == 2


def test_nothing_listens():
    port = closed_port()
    with pytest.raises(FarflungError, match=f"nothing listens at 127.0.0.1:{port}: connection refused") as caught:
        find(Link("127.0.0.1", port, RUN, TICKET))
    assert "coordinator start" in caught.value.hint


def test_another_coordinator(secure):
    with pytest.raises(FarflungError, match="not the one of this link: its certificate has another fingerprint"):
        find(link_to(secure, b"\1" * 32))


def test_a_link_with_tls_to_a_run_without(insecure):
    with pytest.raises(FarflungError, match="does not speak TLS"):
        find(link_to(insecure, b"\1" * 32))


def test_a_link_without_tls_to_a_run_with(secure, tmp_path):
    with pytest.raises(FarflungError, match="ended the connection") as caught:
        join(link_to(secure), DEVICE, cache=tmp_path)
    assert "TLS" in caught.value.hint


def test_a_refusal_is_the_coordinators_sentence(insecure, tmp_path):
    insecure.join_reply = JoinReply(refused="the ticket 00000001 was revoked\nask for a new link")
    with pytest.raises(Refused, match="the ticket 00000001 was revoked") as caught:
        join(link_to(insecure), DEVICE, cache=tmp_path)
    assert caught.value.status == 3 and caught.value.hint == "ask for a new link"


def test_a_taken_port(insecure, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(FarflungError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            join(link_to(insecure), DEVICE, advertise=f"127.0.0.1:{port}", cache=tmp_path)
    assert not insecure.joins


@pytest.mark.parametrize("name", ["a b", "-x", "x" * 64, "ü"])
def test_names_that_are_none(insecure, tmp_path, name):
    with pytest.raises(FarflungError, match="is no name for a node"):
        join(link_to(insecure), DEVICE, name=name, cache=tmp_path)


@pytest.mark.parametrize(
    ("advertise", "told", "listens"),
    [
        ("198.51.100.7", "198.51.100.7:", "0.0.0.0:"),
        ("localhost:0", "localhost:", "0.0.0.0:"),
        ("", "127.0.0.1:", "127.0.0.1:"),
    ],
)
def test_what_is_advertised(insecure, tmp_path, advertise, told, listens):
    joined = join(link_to(insecure), DEVICE, advertise=advertise, cache=tmp_path)
    assert joined.address.startswith(told) and joined.config.listen.startswith(listens)
    assert joined.address.rpartition(":")[2] == joined.config.listen.rpartition(":")[2] != "0"


def test_an_address_that_is_none(insecure, tmp_path):
    with pytest.raises(FarflungError, match="is not HOST:PORT"):
        join(link_to(insecure), DEVICE, advertise="host:port:x", cache=tmp_path)


class DialsBack(StubCoordinator):
    async def Join(self, request, context):
        host, _, port = request.address.rpartition(":")
        with socket.create_connection((host, int(port)), 2.0):
            return await super().Join(request, context)


def test_the_port_is_open_while_the_coordinator_decides(tmp_path):
    with contextlib.closing(DialsBack()) as stub:
        stub.join_reply = JoinReply(name="a", session="s1", secret="x", job=JOB, facts=FACTS, term=1)
        joined = join(link_to(stub), DEVICE, cache=tmp_path)
        wire = ProcessWire.start(joined.config, process=False)  # and free again for the node itself
        stub.wait("hello")
        wire.close("")


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "identity").write_text("in the way")
    with pytest.raises(FarflungError, match="cannot keep the node's key"):
        identity.save_key(tmp_path, RUN, "a", b"key")
