"""The CA, signing, tickets."""

import datetime
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from farflung.coordinator.store.store import Store
from farflung.coordinator.trust.authority import load_authority
from farflung.coordinator.trust.requests import public_key_digest
from farflung.coordinator.trust.tickets import check_ticket, make_ticket, parse_duration
from farflung.proto.errors import FarflungError, Refused
from farflung.proto.words import names


def request(name="x"):
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    csr = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return csr, csr.public_bytes(serialization.Encoding.PEM)


def test_authority_is_made_once(tmp_path):
    first = load_authority(tmp_path / "identity")
    assert load_authority(tmp_path / "identity") == first
    assert stat.S_IMODE((tmp_path / "identity" / "coordinator.key").stat().st_mode) == 0o600
    (tmp_path / "identity" / "coordinator.key").unlink()
    with pytest.raises(FarflungError, match="cannot read the run's identity"):
        load_authority(tmp_path / "identity")


def test_signing_ignores_the_name_in_the_request(tmp_path):
    authority = load_authority(tmp_path)
    csr, pem = request("somebody-else")
    signed, key_hash = authority.sign(pem, "node-1")
    certificate = x509.load_pem_x509_certificate(signed)
    ca = x509.load_pem_x509_certificate(authority.nodes)
    certificate.verify_directly_issued_by(ca)
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert found.get_values_for_type(x509.DNSName) == [names.dns_name("node-1")]
    assert key_hash == public_key_digest(csr) == public_key_digest(certificate)
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.timezone.utc)
    assert datetime.timedelta(hours=23) < left <= datetime.timedelta(hours=24)
    with pytest.raises(Refused, match="certificate request"):
        authority.sign(b"rubbish", "node-1")


def test_tickets(tmp_path):
    store = Store(tmp_path, create=True)
    ticket = make_ticket(store, now=100.0, ttl=60.0, uses=1)
    number, secret = ticket.split(".")
    assert secret not in (tmp_path / "run.sqlite").read_bytes().decode("latin1")
    assert check_ticket(store, ticket, 101.0, take_use=False) == number
    assert check_ticket(store, ticket, 101.0, take_use=True) == number
    with pytest.raises(Refused, match="used up"):
        check_ticket(store, ticket, 101.0, take_use=True)
    with pytest.raises(Refused, match="used up"):
        check_ticket(store, ticket, 101.0, take_use=False)
    assert check_ticket(store, ticket, 280.0, take_use=False, returns=True) == number
    ticket = make_ticket(store, now=100.0, ttl=60.0)
    number = ticket.split(".")[0]
    with pytest.raises(Refused, match=r"expired 2 min ago"):
        check_ticket(store, ticket, 280.0, take_use=False)
    with pytest.raises(Refused, match="wrong"):
        check_ticket(store, number + "." + "0" * 32, 101.0, take_use=False)
    forever = make_ticket(store, now=100.0)
    for _ in range(3):
        check_ticket(store, forever, 1e9, take_use=True)
    assert store.tickets.revoke(forever.split(".")[0])
    assert not store.tickets.revoke("nothing")
    with pytest.raises(Refused, match="revoked"):
        check_ticket(store, forever, 1e9, take_use=True)
    store.close()


def test_durations():
    assert [parse_duration(text) for text in ("90s", "15m", "24h", "1.5d")] == [90, 900, 86400, 129600]
    with pytest.raises(FarflungError, match="90s"):
        parse_duration("soon")
