"""The node's side of identity: a P-256 key that never leaves the machine, the request for a certificate, and the
check that the coordinator is the one that the link names.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ...proto.errors import FarflungError, Unreachable
from ...proto.process.files import write_whole
from ...proto.words import names
from ...proto.words.border import below
from .large_packets import HINT, black_hole


@dataclass(frozen=True)
class Identity:
    """A node's credentials in a run with TLS, PEM: its key and certificate, and the CA of nodes."""

    run: str
    key: bytes = field(repr=False)
    certificate: bytes
    authority: bytes


def make_key() -> bytes:
    """A new private key, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def load_key(folder: Path, run: str, name: str) -> bytes | None:
    """The key with which this machine joined `run` as `name` before, PEM; None if it never did.

    A node that joins with the key that it had before rejoins: this takes no use of the ticket.
    """
    try:
        return _key_path(folder, run, name).read_bytes()
    except FileNotFoundError:
        return None


def keeps_key(folder: Path, run: str, name: str = "") -> bool:
    """Whether this machine was in `run` before, as `name` or (empty) as anybody."""
    return load_key(folder, run, name) is not None if name else bool(known_names(folder, run))


def known_names(folder: Path, run: str) -> list[str]:
    """Names under which this machine has joined `run`, the last one first."""
    keys = [path for path in below(folder, "identity", run).glob("*.key") if names.NODE.match(path.stem)]
    return [path.stem for path in sorted(keys, key=lambda path: path.stat().st_mtime, reverse=True)]


def save_key(folder: Path, run: str, name: str, key: bytes) -> None:
    """Keeps the key for the next join, readable by its owner only. FarflungError when the folder can't be written."""
    path = _key_path(folder, run, name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(path, key, mode=0o600)
    except OSError as error:
        raise FarflungError(
            f"cannot keep the node's key in {path.parent}: {error.strerror}", "free or name a folder"
        ) from error


def certificate_request(key: bytes, name: str) -> bytes:
    """A certificate request (PEM) signed by the key. The coordinator decides which name the certificate gets."""
    private = serialization.load_pem_private_key(key, None)
    assert isinstance(private, ec.EllipticCurvePrivateKey), "make_key makes P-256 keys"
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name or "node")])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(private, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def pinned_certificate(host: str, port: int, fingerprint: bytes, timeout: float) -> bytes:
    """The coordinator's certificate (PEM), fetched and compared with the link's fingerprint (sha256 of its DER).

    Later connections trust this certificate alone. So it must not be a CA: a server with a certificate that the CA
    signed would pass for the coordinator. FarflungError: the server there does not speak TLS, is another coordinator,
    or one of an earlier version.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is trusted by this handshake: the digest below decides
    context.set_alpn_protocols(["h2"])
    where = f"{host}:{port}"
    try:
        with (
            socket.create_connection((host, port), timeout) as plain,
            context.wrap_socket(plain, server_hostname="coordinator") as secured,
        ):
            der = secured.getpeercert(binary_form=True)
    except ssl.SSLError as error:
        raise Unreachable(  # or a hotel's login page, which goes
            f"what answers at {where} does not speak TLS as a coordinator does ({error.reason or error})",
            "copy the whole line that `farflung coordinator start` prints; a run that was started with --insecure "
            "has another link",
        ) from error
    except OSError as error:
        if isinstance(error, TimeoutError) and (hole := black_hole(host, port)):
            raise Unreachable(hole, HINT) from error
        raise Unreachable(
            f"the coordinator at {where} ended the connection: {error}",
            "is `farflung coordinator start` still running?",
        ) from error
    if der is None or hashlib.sha256(der).digest() != fingerprint:
        raise FarflungError(
            f"the coordinator at {where} is not the one of this link: its certificate has another fingerprint",
            "a run with a new state folder has a new link: copy the line that `farflung coordinator start` prints now",
        )
    _check_dates(der, where)
    if _signs_others(der):
        raise FarflungError(
            f"the coordinator at {where} is of an earlier version, whose nodes can pass as the coordinator itself",
            "start it with this version of farflung, and use the link that it prints then",
        )
    return ssl.DER_cert_to_PEM_cert(der).encode()


def _check_dates(der: bytes, where: str) -> None:
    """Raises Unreachable where the certificate is not valid by this machine's clock."""
    read = x509.load_der_x509_certificate(der)
    first, last, now = read.not_valid_before_utc, read.not_valid_after_utc, datetime.now(timezone.utc)
    if not first <= now <= last:
        what = "is not valid yet" if now < first else "is not valid any more"
        day = "%Y-%m-%d %H:%M"
        raise Unreachable(
            f"the certificate of the coordinator at {where} {what}: it is from {first:{day}} to {last:{day}}, and this "
            f"machine's clock says {now:{day}} UTC",
            "set this machine's clock (timedatectl set-ntp true), or the coordinator's where that is the wrong one",
        )


def _signs_others(der: bytes) -> bool:
    """Whether a certificate is a CA's."""
    try:
        constraints = x509.load_der_x509_certificate(der).extensions.get_extension_for_class(x509.BasicConstraints)
    except x509.ExtensionNotFound:
        return True  # an X.509 version 1 certificate, for example, has no such limit and may sign
    return constraints.value.ca


def _key_path(folder: Path, run: str, name: str) -> Path:
    return below(folder, "identity", run, f"{name}.key")
