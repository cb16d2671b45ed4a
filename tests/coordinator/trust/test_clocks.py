"""A clock that is off is named before anything is spent for it."""

import time
from datetime import datetime, timedelta, timezone

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from farflung.cli.doctor.of_a_run import beside
from farflung.coordinator.trust.authority import NODE_LIFE, make_authority
from farflung.coordinator.trust.clocks import check_clock
from farflung.node.device import identity
from farflung.node.join import ended_by
from farflung.proto.errors import NotNow, Unreachable

NOW, DAY = 1.8e9, 86400.0


@pytest.mark.parametrize("theirs", [0.0, NOW, NOW + NODE_LIFE / 3 - 60, NOW - 0.9 * DAY])
def test_clocks_that_are_near_enough(theirs):
    check_clock(theirs, NOW, NODE_LIFE)
    check_clock(NOW + 30, NOW, 3.0)  # whatever life certificates have, a join may take seconds


@pytest.mark.parametrize(("theirs", "words"), [(NOW + 2.1 * DAY, "2 days ahead of"), (NOW - 3 * DAY, "3 days behind")])
def test_clocks_by_which_certificates_do_not_count(theirs, words):
    with pytest.raises(NotNow, match=f"clock is {words} the coordinator's") as caught:
        check_clock(theirs, NOW, NODE_LIFE)
    assert "timedatectl" in caught.value.hint
    assert not beside(theirs, NOW).ok and beside(NOW, NOW).ok and beside(NOW, 0.0).ok


async def test_a_join_two_days_ahead_costs_no_ticket_and_is_told_to_both_sides(cluster):
    coordinator = cluster.coordinator()
    link = await coordinator.link
    reply = await cluster.fake(link, "a").join(time=time.time() + 2.1 * DAY)
    assert "2 days ahead of the coordinator's" in reply.refused and reply.passes
    said = await coordinator.event("warning")
    assert "a cannot join: its machine's clock is 2 days ahead" in said["message"]
    assert not (await cluster.fake(link, "a").join(time=time.time() + 60)).refused


@pytest.mark.parametrize(("days", "words"), [(-3, "is not valid yet"), (20 * 365, "is not valid any more")])
def test_a_certificate_that_does_not_count_by_this_clock_is_named_with_its_dates(monkeypatch, days, words):
    class Clock(datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.now(timezone.utc) + timedelta(days=days)

    der = x509.load_pem_x509_certificate(make_authority().certificate).public_bytes(Encoding.DER)
    identity._check_dates(der, "a:1")
    monkeypatch.setattr(identity, "datetime", Clock)
    with pytest.raises(Unreachable, match=f"{words}: it is from .* and this machine's clock says"):
        identity._check_dates(der, "a:1")


def test_the_word_ok_is_no_cause():
    words = "last error: UNKNOWN: ipv4:1.2.3.4:1: Ssl handshake failed: certificate verify failed: OK"
    assert ended_by(words, "UNAVAILABLE") == "certificate verify failed"
    assert ended_by("OK", "UNAVAILABLE") == ended_by("", "UNAVAILABLE") == "UNAVAILABLE"
