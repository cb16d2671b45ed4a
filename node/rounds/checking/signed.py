"""Signed contributions: members sign them with the key of their certificate, so that others can prove who sent what.

In all-to-all a member might send one contribution to the publisher and another to the rest. Two different signed
contributions of one member to one part of a round prove this to every node that trusts the run's CA of nodes. The
signature covers the run, the view, the member's session, the section, the round, the part and the contribution's
digest. A member signs once for each part and round. The publisher checks signatures, other members only if two
contributions differ (``protocol/contributions.py``); so an honest round costs each member one signature, and the
publisher one check per member. Publishers' signatures are in ``receipts.py``.

The certificate is six times as long as the signature, so it is sent only with a member's first contribution in a view,
and with every contribution that was asked for. All members remember it. A member that lacks it asks for the
contribution; an answer without the certificate is refused.
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
"""The most bytes of a certificate."""
KNOWN = 4
"""How many certificates of each member are remembered; a member gets a new one every day."""


class Signer:
    """Signs for one member, and checks signatures of the view's other members."""

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
        """Whether ``member`` has signed this contribution. If it came without a certificate, the member's last valid
        one is used; None: none is known."""
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
        """This member's signature, 64 bytes, of a result; ``said``: the digest of the result's content, 32 bytes."""
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
        """Whether ``signature`` is that of ``member`` under a result; ``certificate``: empty: the last valid one."""
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
        """Remember a certificate of ``member``, if it is valid."""
        self._key_of(member, certificate)

    def known_certificate(self, member: str) -> bytes:
        """The last valid certificate that came of a member; empty: none."""
        return self._latest.get(member, b"")

    def _said(self, member: str, section: str, round: int, part: int, digest: int) -> bytes:
        return self._words("contribution", member, section, round, part, f"{digest:016x}")

    def _words(self, what: str, member: str, section: str, round: int, part: int, said: str) -> bytes:
        session = self._sessions.get(member, "")
        words = (f"farflung {what}", self._run, self._view, session, section, round, part, said)
        return "\n".join(map(str, words)).encode()

    def _key_of(self, member: str, certificate: bytes) -> ec.EllipticCurvePublicKey | None:
        """The public key in a certificate; None unless the run's CA issued it for this member."""
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
