"""Who contributed what, so that others can check it: members sign contributions with the key of their certificate.

In all-to-all a member might send one contribution to the publisher and another to the rest. Two signed contributions of
one member to one part of a round prove that it did, to everybody who trusts the run's CA of nodes: what is signed is
the run, the view, the member's session, the section, the round, the part and the contribution's digest. A member signs
once for each part and round. A signature is looked at by the publisher, and elsewhere only where two contributions
differ (``machine.py``), so an honest round costs one signature, and the publisher one check for each member. What
publishers sign is in ``receipts.py``.

The certificate is six times as long as the signature, so it goes with what a member first contributes in a view, and
with everything that was asked for. Everybody remembers it when it comes. Who does not know it asks for the
contribution; what comes without it then is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from ....proto.words import names
from ...device.identity import Identity
from ..protocol.messages import Contribution

LONGEST = 4096
"""Bytes of a certificate, at most."""
KNOWN = 4
"""Certificates that are remembered of each member: it has another one every day."""


class Signer:
    """Signs as one member, and checks what the others of a view have signed."""

    def __init__(self, identity: Identity, view: int, sessions: Mapping[str, str]) -> None:
        """``sessions``: the session of each member of the view."""
        key = serialization.load_pem_private_key(identity.key, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey), "make_key makes P-256 keys"
        self._key, self._run, self._view, self._sessions = key, identity.run, view, sessions
        own = x509.load_pem_x509_certificate(identity.certificate)
        self.certificate = own.public_bytes(serialization.Encoding.DER)
        """This member's certificate, DER."""
        self._authority = x509.load_pem_x509_certificate(identity.authority)
        self._keys: dict[tuple[str, bytes], ec.EllipticCurvePublicKey] = {}
        self._latest: dict[str, bytes] = {}

    def signed(self, me: str, section: str, round: int, part: int, sent: Contribution) -> Contribution:
        """This member's contribution with its signature and certificate."""
        said = self._said(me, section, round, part, sent.digest)
        return replace(sent, signature=self._key.sign(said, ec.ECDSA(hashes.SHA256())), certificate=self.certificate)

    def vouches(self, member: str, section: str, round: int, part: int, sent: Contribution) -> bool | None:
        """Whether ``member`` has signed that this is what it contributes. Without a certificate: by the last good one
        of its that came; None: none has."""
        certificate = sent.certificate or self.known_certificate(member)
        if not certificate:
            return None
        key = self._key_of(member, certificate)
        if key is None:
            return False
        try:
            said = self._said(member, section, round, part, sent.digest)
            key.verify(sent.signature, said, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True

    def attestation(self, me: str, section: str, round: int, part: int, said: bytes) -> bytes:
        """This member's signature, 64 bytes, of what it says in a result; ``said``: a digest, 32 bytes."""
        words = self._words("result", me, section, round, part, said.hex())
        r, s = decode_dss_signature(self._key.sign(words, ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")

    def attests(
        self,
        member: str,
        section: str,
        round: int,
        part: int,
        said: bytes,
        *,
        signature: bytes,
        certificate: bytes = b"",
    ) -> bool:
        """Whether ``member`` has signed that. Without a certificate: by the last good one of its that came."""
        key = self._key_of(member, certificate or self.known_certificate(member))
        if key is None or len(signature) != 64:
            return False
        try:
            der = encode_dss_signature(int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big"))
            key.verify(der, self._words("result", member, section, round, part, said.hex()), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True

    def learn(self, member: str, certificate: bytes) -> None:
        """Remember a certificate of ``member``, if it is one."""
        self._key_of(member, certificate)

    def known_certificate(self, member: str) -> bytes:
        """The last good certificate of a member that came; empty: none has."""
        return self._latest.get(member, b"")

    def _said(self, member: str, section: str, round: int, part: int, digest: int) -> bytes:
        return self._words("contribution", member, section, round, part, f"{digest:016x}")

    def _words(self, what: str, member: str, section: str, round: int, part: int, said: str) -> bytes:
        session = self._sessions.get(member, "")
        words = (f"farflung {what}", self._run, self._view, session, section, round, part, said)
        return "\n".join(map(str, words)).encode()

    def _key_of(self, member: str, certificate: bytes) -> ec.EllipticCurvePublicKey | None:
        """The key in a certificate, if the run's CA made it for this member."""
        known = self._keys.get((member, certificate))
        if known is not None:
            self._latest[member] = certificate
        if known is not None or not certificate or len(certificate) > LONGEST:
            return known
        try:
            found = x509.load_der_x509_certificate(certificate)
            found.verify_directly_issued_by(self._authority)
            named = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            key = found.public_key()
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.ExtensionNotFound):
            return None
        ours = named.get_values_for_type(x509.DNSName) == [names.dns_name(member)]
        if not ours or not isinstance(key, ec.EllipticCurvePublicKey):
            return None
        of_it = [one for one in self._keys if one[0] == member]
        if len(of_it) >= KNOWN:
            del self._keys[of_it[0]]
        self._keys[member, certificate] = key
        self._latest[member] = certificate
        return key
