"""Who may join and how both sides prove themselves: the run's two keys, node certificates, tickets, session secrets.

Both keys are made at the first start, in STATE/identity (or in the database, see ``sealing.py``), and never leave it.
The coordinator's own certificate is what a link's fingerprint pins: it is signed by itself, is no CA, and its key signs
nothing else, so a client that trusts it alone can be shown no other. Nodes' certificates are signed by the second key,
whose certificate is a CA for DNS names of nodes only; nodes get it when they join.
Secrets are stored as sha256 only: they are random and 128 bits or longer, so a slow hash would add nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ...proto import names
from ...proto.errors import FarflungError, Refused
from ..store.rows import Ticket
from ..store.store import Store

NODE_LIFE = 24 * 3600.0
"""Seconds that a node's certificate is good for; nodes have it renewed after two thirds of them."""
CA_DAYS = 3650
OLD = "ca.pem"
"""What earlier versions had in the folder: one certificate that was the coordinator's and signed those of nodes."""
_AGAIN = "ask for a new link: `farflung coordinator token STATE` prints one"
_SKEW = timedelta(days=1)  # a joiner's clock may be wrong by hours


def digest(secret: str) -> str:
    """What is stored of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def same(secret: str, stored: str) -> bool:
    """Whether ``secret`` is the one whose digest was stored, in constant time."""
    return hmac.compare_digest(digest(secret), stored)


@dataclass(frozen=True)
class Authority:
    """The run's identity, all PEM: ``certificate`` and ``key`` are the coordinator's own, ``fingerprint`` the sha256 of
    the certificate's DER; ``nodes`` and ``nodes_key`` are the CA that signs nodes' certificates."""

    certificate: bytes
    key: bytes
    fingerprint: bytes
    nodes: bytes
    nodes_key: bytes

    def sign(self, request: bytes, name: str, life: float = NODE_LIFE) -> tuple[bytes, str]:
        """A node's certificate (PEM, CN ``name``, DNS name ``names.dns_name(name)``) for its CSR, good for ``life``
        seconds, and its public key's sha256.

        The CSR's own names are ignored. Refused when it is no CSR or not signed by its own key.
        """
        csr = requested(request)
        issuer = x509.load_pem_x509_certificate(self.nodes)
        now = datetime.now(timezone.utc)
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_called(name))
            .issuer_name(issuer.subject)
            .public_key(csr.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + timedelta(seconds=life))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(names.dns_name(name))]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .sign(_private(self.nodes_key), hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM), public_key_digest(csr)


def requested(request: bytes) -> x509.CertificateSigningRequest:
    """A node's CSR (PEM). Refused when it is none, has another kind of key, or is not signed by its own."""
    try:
        csr = x509.load_pem_x509_csr(request)
        key = csr.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise Refused(f"the certificate request is not one: {error}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise Refused("the certificate request is not for a P-256 key")
    if not csr.is_signature_valid:
        raise Refused("the certificate request is not signed by its own key")
    return csr


def public_key_digest(holder: x509.CertificateSigningRequest | x509.Certificate) -> str:
    """sha256 (hex) of the public key: the same key is the same machine."""
    der = holder.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


_FILES = ("coordinator.pem", "coordinator.key", "nodes.pem", "nodes.key")


def load_authority(folder: Path) -> Authority:
    """The identity in ``folder``, made there (keys readable by their owner only) when there is none.

    One of an earlier version is not taken: what it signed for nodes would pass as the coordinator's.
    """
    if not (folder / _FILES[0]).exists():
        save_authority(folder, make_authority())
    try:
        return authority_of(*((folder / name).read_bytes() for name in _FILES))
    except (OSError, ValueError) as error:
        hint = "restore it, or start a new run with another --state; joined nodes trust this identity only"
        raise FarflungError(f"cannot read the run's identity in {folder}: {error}", hint) from None


def is_older(folder: Path) -> bool:
    """Whether ``folder`` has the identity of an earlier version, and none yet of this one."""
    return (folder / OLD).exists() and not (folder / _FILES[0]).exists()


def save_authority(folder: Path, authority: Authority) -> None:
    """Write an identity, readable by its owner only."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    parts = (authority.certificate, authority.key, authority.nodes, authority.nodes_key)
    for name, text in reversed(list(zip(_FILES, parts, strict=True))):  # the first, by which it is found, comes last
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)


def authority_of(certificate: bytes, key: bytes, nodes: bytes, nodes_key: bytes) -> Authority:
    """An identity of its parts in PEM. ValueError when a certificate is none."""
    x509.load_pem_x509_certificate(nodes)
    return Authority(certificate, key, fingerprint_of(certificate), nodes, nodes_key)


def fingerprint_of(certificate: bytes) -> bytes:
    """sha256 of a PEM certificate's DER."""
    der = x509.load_pem_x509_certificate(certificate).public_bytes(serialization.Encoding.DER)
    return hashlib.sha256(der).digest()


def make_authority() -> Authority:
    """A new identity."""
    own, of_nodes = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    certificate = (
        _by_itself(own, "coordinator")
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("coordinator")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(server, critical=False)
        .sign(own, hashes.SHA256())
    )
    permitted = x509.NameConstraints(permitted_subtrees=[x509.DNSName(names.DOMAIN)], excluded_subtrees=None)
    nodes = (
        _by_itself(of_nodes, "farflung nodes")
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(permitted, critical=True)
        .sign(of_nodes, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return authority_of(certificate.public_bytes(pem), _pem(own), nodes.public_bytes(pem), _pem(of_nodes))


def _by_itself(key: ec.EllipticCurvePrivateKey, name: str) -> x509.CertificateBuilder:
    """What a certificate has that its own key will sign."""
    now = datetime.now(timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(_called(name))
        .issuer_name(_called(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=CA_DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )


def _called(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(signs: bool) -> x509.KeyUsage:
    """Signs certificates, or handshakes."""
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _private(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey), "make_authority makes P-256 keys"
    return key


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


# ---- tickets -------------------------------------------------------------------------------


def make_ticket(store: Store, now: float, ttl: float | None = None, uses: int | None = None) -> str:
    """A new ticket, ``"ID.SECRET"``: valid ``ttl`` seconds (None: for ever) for ``uses`` first joins or,
    an operator's, commands (None: any number)."""
    number, secret = secrets.token_hex(4), secrets.token_hex(16)
    store.add_ticket(Ticket(number, digest(secret), now, None if ttl is None else now + ttl, uses, False))
    return f"{number}.{secret}"


def given_out(store: Store, ticket: str) -> Ticket:
    """A ticket that this run gave out and did not revoke, expired and used up ones too. Refused."""
    number, _, secret = ticket.partition(".")
    known = store.ticket(number)
    if known is None or not same(secret, known.secret_hash):
        raise Refused("the ticket is wrong: this run never gave it out", _AGAIN)
    if known.revoked:
        raise Refused(f"the ticket {number} was revoked", _AGAIN)
    return known


def check_ticket(store: Store, ticket: str, now: float, take_use: bool, returns: bool = False) -> str:
    """The id of a valid ticket, one use of it taken if wanted; Refused says why it is not valid and what to do.

    ``returns``: for a node that comes back with its key an expired or used-up ticket will do.
    """
    known = given_out(store, ticket)
    number, again = known.number, _AGAIN
    if known.expires is not None and now >= known.expires and not returns:
        raise Refused(f"the ticket {number} expired {_ago(now - known.expires)} ago", again)
    if (known.uses == 0 and not returns) or (take_use and not store.take_ticket_use(number)):
        raise Refused(f"the ticket {number} is used up", again)
    return number


def make_operator(store: Store, ticket: str) -> None:
    """Let a ticket ("ID.SECRET") give commands, and admit no node."""
    store.put(f"operator {ticket.partition('.')[0]}", "1")


def is_operator(store: Store, ticket: str) -> bool:
    """Whether a ticket ("ID.SECRET" or ID) is one that gives commands."""
    return store.get(f"operator {ticket.partition('.')[0]}") is not None


def check_joining(store: Store, ticket: str, now: float, take_use: bool, returns: bool = False) -> str:
    """``check_ticket`` for a node; an operator's ticket admits none."""
    if is_operator(store, ticket):
        again = "give nodes a link of `farflung coordinator token STATE`"
        raise Refused("this link gives commands, and admits no node", again)
    return check_ticket(store, ticket, now, take_use, returns)


def check_operator(store: Store, ticket: str, now: float) -> str:
    """The id of a valid ticket that may give commands, one use of it taken; one of nodes may not. Refused."""
    number = check_ticket(store, ticket, now, take_use=False)
    if not is_operator(store, number):
        raise Refused(
            "this link lets nodes join, and commands nobody",
            "give the state folder; or a link of `farflung coordinator token STATE --operator`",
        )
    return check_ticket(store, ticket, now, take_use=True)


def parse_duration(text: str) -> float:
    """Seconds of "90s", "15m", "24h", "7d". FarflungError when it is not one."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if not found:
        raise FarflungError(f"{text!r} is not a duration", "write it like 90s, 15m, 24h or 7d")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
