"""Certificate requests of nodes: their validation, and the digest of their key."""

from __future__ import annotations

import hashlib

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ...proto.errors import Refused


def requested(request: bytes) -> x509.CertificateSigningRequest:
    """A node's CSR (PEM), parsed. Refused when it is no CSR, has another kind of key, or is not signed by its own
    key."""
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
