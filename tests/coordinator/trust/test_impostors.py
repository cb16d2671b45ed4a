"""Somebody on the way, with a ticket and certificates of the run, who wants to pass as the coordinator or a member."""

import asyncio
import contextlib
import dataclasses
import datetime
import json

import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from farflung.coordinator.trust.authority import load_authority, make_authority
from farflung.coordinator.trust.links import IDENTITY, issue
from farflung.node.device import identity as of_node
from farflung.proto import control_pb2 as pb
from farflung.proto.connections import rpc
from farflung.proto.words import names


def certificate_for(name, issuer, issuer_key, key, ca=False):
    """What a signer that checks nothing would give: any DNS name, by any key."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .sign(issuer_key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )


def shown_by(kind, authority):
    """(key, certificates) in PEM that an impostor of that kind shows as the coordinator's."""
    key = ec.generate_private_key(ec.SECP256R1())
    pem = _pem(key)
    nodes = x509.load_pem_x509_certificate(authority.nodes)
    nodes_key = serialization.load_pem_private_key(authority.nodes_key, None)
    if kind == "a member's own":
        own = of_node.make_key()
        return own, authority.sign(of_node.certificate_request(own, "x"), "coordinator.")[0]
    if kind == "of its name, by the nodes' key":
        return pem, certificate_for("coordinator", nodes.subject, nodes_key, key) + authority.nodes
    if kind == "of its name, with a dot":
        return pem, certificate_for("coordinator.", nodes.subject, nodes_key, key)
    pinned = x509.load_pem_x509_certificate(authority.certificate)
    if kind == "of its name, by itself":
        return pem, certificate_for("coordinator", pinned.subject, key, key)
    own = of_node.make_key()  # a chain below a member's own certificate, which is no CA
    leaf = authority.sign(of_node.certificate_request(own, "x"), "honest-a")[0]
    issuer = x509.load_pem_x509_certificate(leaf).subject
    below = certificate_for("coordinator", issuer, serialization.load_pem_private_key(own, None), key)
    return pem, below + leaf + authority.nodes


class Impostor(rpc.CoordinatorServicer):
    """Collects whatever a client says to it."""

    def __init__(self):
        self.heard = []

    async def Status(self, request, context):
        self.heard.append(request)
        return pb.StatusReply(status="{}")

    async def Command(self, request, context):
        self.heard.append(request)
        return pb.CommandReply(answer="done")

    async def Join(self, request, context):
        self.heard.append(request)
        return pb.JoinReply(refused="no")


@contextlib.asynccontextmanager
async def in_the_middle(real, key, certificates):
    """(port, Impostor): the first two connections, by which a client looks at the certificate, go through to the real
    coordinator; all others end at the impostor."""
    impostor, seen = Impostor(), []
    server = grpc.aio.server(options=rpc.server_options())
    rpc.add_CoordinatorServicer_to_server(impostor, server)
    port = rpc.bind(server, "127.0.0.1:0", grpc.ssl_server_credentials([(key, certificates)]))
    await server.start()

    async def through(reader, writer):
        seen.append(1)
        target = real if len(seen) <= 2 else port
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)

        async def copy(source, sink):
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    sink.write(data)
                    await sink.drain()
            sink.close()

        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))

    middle = await asyncio.start_server(through, "127.0.0.1", 0)
    try:
        yield middle.sockets[0].getsockname()[1], impostor, seen
    finally:
        middle.close()
        await server.stop(0)


@pytest.fixture
def farflung(nursery):
    """(exit status, stdout) of a command in a process of its own."""

    async def run(*words):
        done = await asyncio.to_thread(nursery.run, *words, "--json")
        return done.returncode, done.stdout

    return run


KINDS = [
    "a member's own",
    "of its name, by the nodes' key",
    "of its name, with a dot",
    "of its name, by itself",
    "of its name, below a member's",
]


@pytest.mark.parametrize("kind", KINDS)
async def test_nobody_passes_as_the_coordinator(cluster, farflung, kind):
    """The certificate is looked at on one connection and used on another: the impostor takes the second."""
    coordinator = cluster.coordinator()
    link = await coordinator.link
    authority = load_authority(coordinator.state / IDENTITY)
    async with in_the_middle(link.port, *shown_by(kind, authority)) as (port, impostor, seen):
        status, out = await farflung("status", str(dataclasses.replace(link, port=port)))
        assert len(seen) > 2, "the command went its usual way"
        assert status != 0 and not impostor.heard, out


async def test_no_command_and_no_join_reaches_an_impostor(cluster, farflung, tmp_path):
    coordinator = cluster.coordinator()
    link = await coordinator.link
    authority = load_authority(coordinator.state / IDENTITY)
    operator = issue(coordinator.state, operator=True)
    for words in (("coordinator", "pause"), ("join", "--cache", str(tmp_path / "cache"))):
        async with in_the_middle(link.port, *shown_by(KINDS[1], authority)) as (port, impostor, seen):
            used = operator if words[0] == "coordinator" else link
            status, out = await farflung(*words, str(dataclasses.replace(used, port=port)))
            assert len(seen) > 2 and status != 0 and not impostor.heard, out
    assert (await farflung("status", str(link)))[0] == 0, "the real one answers"


async def test_a_pinned_certificate_that_signs_others_is_not_trusted(tmp_path):
    """As earlier versions had them: every node's certificate was signed by the one that the link pins."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "coordinator")])
    certificate = certificate_for("coordinator", subject, key, key, ca=True)
    server = grpc.aio.server()
    port = rpc.bind(server, "127.0.0.1:0", grpc.ssl_server_credentials([(_pem(key), certificate)]))
    await server.start()
    fingerprint = x509.load_pem_x509_certificate(certificate).fingerprint(hashes.SHA256())
    with pytest.raises(Exception, match="of an earlier version"):
        await asyncio.to_thread(of_node.pinned_certificate, "127.0.0.1", port, fingerprint, 10.0)
    await server.stop(0)


async def test_an_identity_of_an_earlier_version_is_replaced(cluster):
    (cluster.folder / "state" / IDENTITY).mkdir(parents=True)
    (cluster.folder / "state" / IDENTITY / "ca.pem").write_text("old")
    coordinator = cluster.coordinator()
    link = await coordinator.link
    assert "new certificate" in json.dumps(await coordinator.event("warning"))
    assert not (await cluster.fake(link, "a").join()).refused


NAMES = ["HONEST-A", "honest-a.", "honest-a", "Honest-a", "coordinator", "coordinator.", "*", "*.node.farflung"]


async def test_no_two_names_have_one_certificate(cluster):
    """Whatever name a certificate is for, TLS takes it for that very name and for no other."""
    authority = make_authority()
    for shown in NAMES:
        key = of_node.make_key()
        certificate = authority.sign(of_node.certificate_request(key, "x"), shown)[0]
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((rpc.peer_handler(_accept),))
        credentials = rpc.Credentials(authority.nodes, certificate, key)
        port = rpc.bind(server, "127.0.0.1:0", rpc.peer_server_credentials(lambda c=credentials: c))
        await server.start()
        for wanted in NAMES:
            async with rpc.peer_channel(f"127.0.0.1:{port}", wanted, credentials) as channel:
                try:
                    taken = await asyncio.wait_for(rpc.peer_method(channel).read(), 60) is not rpc.END
                except rpc.BROKEN:
                    taken = False
            assert taken == (wanted == shown), (wanted, shown)
        await server.stop(0)


async def _accept(context):
    is_peer = [name for name in NAMES if rpc.is_peer(context, name)]
    assert len(is_peer) == 1
    await context.write(b"welcome")


async def test_the_coordinator_is_no_peer_and_the_ca_names_nodes_only(cluster):
    """The coordinator's own certificate opens no member's port; nor would one of the CA for another domain."""
    authority = make_authority()
    node_key = of_node.make_key()
    certificate, _ = authority.sign(of_node.certificate_request(node_key, "x"), "a")
    node = rpc.Credentials(authority.nodes, certificate, node_key)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((rpc.peer_handler(_accept),))
    port = rpc.bind(server, "127.0.0.1:0", rpc.peer_server_credentials(lambda: node))
    await server.start()
    key = ec.generate_private_key(ec.SECP256R1())
    nodes = x509.load_pem_x509_certificate(authority.nodes)
    outside = certificate_for("elsewhere.example", nodes.subject, _key(authority.nodes_key), key)
    for certificate, its_key in ((authority.certificate, authority.key), (outside, _pem(key))):
        credentials = rpc.Credentials(authority.nodes, certificate, its_key)
        async with rpc.peer_channel(f"127.0.0.1:{port}", "a", credentials) as channel:
            with pytest.raises(rpc.BROKEN):
                assert await asyncio.wait_for(rpc.peer_method(channel).read(), 60) is rpc.END
                raise grpc.RpcError
    assert names.DOMAIN in str(nodes.extensions.get_extension_for_class(x509.NameConstraints).value)
    await server.stop(0)


def _key(pem):
    return serialization.load_pem_private_key(pem, None)


def _pem(key):
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
