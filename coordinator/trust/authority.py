"""The run's identity: the coordinator's own key and certificate, and the CA that signs those of nodes.

Both keys are made at the first start, in STATE/identity (or in the database, see ``sealing.py``), and never leave it.
A link's fingerprint pins the coordinator's own certificate. That is self-signed, no CA, and its key signs nothing else,
so a client that trusts only this certificate accepts no other. Nodes' certificates are signed by the second key, whose
certificate is a CA for DNS names of nodes only; nodes get it when they join.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ...proto.errors import FarflungError
from ...proto.process.files import write_whole
from ...proto.words import names
from .requests import public_key_digest, requested

NODE_LIFE = 24 * 3600.0
"""Seconds for which a node's certificate is valid; nodes renew it after two thirds of that."""
CA_DAYS = 3650
OLD = "ca.pem"
"""The files of earlier versions: one certificate that was the coordinator's own and also signed nodes' certificates."""
_SKEW = timedelta(days=1)  # a joiner's clock may be wrong by hours


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


_FILES = ("coordinator.pem", "coordinator.key", "nodes.pem", "nodes.key")


def load_authority(folder: Path) -> Authority:
    """The identity in ``folder``, made there (keys readable by their owner only) when there is none.

    An identity of an earlier version is not used: certificates that it signed for nodes would be accepted as the
    coordinator's.
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
    for name, text in reversed(list(zip(_FILES, parts, strict=True))):  # the first file last: it marks a whole identity
        write_whole(folder / name, text, mode=0o600)


def authority_of(certificate: bytes, key: bytes, nodes: bytes, nodes_key: bytes) -> Authority:
    """An identity from its parts in PEM. ValueError when a part is no certificate."""
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
    """The builder of a self-signed certificate."""
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
    """Key usage for signing certificates (a CA), or handshakes."""
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
