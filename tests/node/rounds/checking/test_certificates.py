"""A member's certificate goes with its first contributions of a view, and with whatever is asked for."""

import pytest
from certificates import identities
from header_bodies import body_of
from round_group import Group

from farflung.node.rounds.checking.signed import Signer
from farflung.proto import data_pb2

NAMES = "abcd"
MADE = identities(NAMES)
UNSIGNED = "a contribution of d that d has not signed"


def group_of(view=3, sessions=None):
    """A new view: nobody knows a certificate."""
    lives = sessions or {name: f"{name}1" for name in NAMES}
    group = Group("all_to_all", "none", [1.0] * 4, signers={name: Signer(MADE[name], view, lives) for name in NAMES})
    group.points = []
    for name, link in group.links.items():
        link.outlet.refuse = lambda node, why, points=1, by=name: group.points.append((by, node, why))
    return group


def begin(group):
    for link in group.links.values():
        link.begin()


def deliver(group, lost=lambda sender, to, header: False):
    """Everything arrives but what is lost; which messages arrived."""
    seen = []
    while group.mail:
        sender, to, header, data = group.mail[0]
        if lost(sender, to, header):
            group.mail.pop(0)
            continue
        seen.append((sender, to, header, data))
        group.deliver(0)
    return seen


def apply(group):
    assert all(link.complete for link in group.links.values())
    for name in group.links:
        group.apply(name)


def contributions(seen):
    return [header for _, _, header, _ in seen if header.kind == data_pb2.CONTRIBUTION]


def test_from_the_second_round_on_a_contribution_says_its_signature_alone():
    group = group_of()
    begin(group)
    first = deliver(group)
    apply(group)
    begin(group)
    second = deliver(group)
    apply(group)
    assert all(body_of(header).certificate for header in contributions(first))
    assert len(contributions(second)) == len(contributions(first)) == 12
    for header in contributions(second):
        assert not body_of(header).certificate and 64 < len(body_of(header).signature) <= 72
        bare = data_pb2.Header()
        bare.CopyFrom(header)
        bare.contribution.ClearField("signature")
        assert header.ByteSize() - bare.ByteSize() <= 75, "what a contribution costs for being signed"
    assert not group.points


@pytest.mark.parametrize("sessions", [None, {**{name: f"{name}1" for name in NAMES}, "c": "c2"}])
def test_a_later_view_begins_with_certificates_whoever_enters_or_restarts(sessions):
    group = group_of(4, sessions)
    begin(group)
    assert all(body_of(header).certificate for header in contributions(deliver(group)))
    apply(group)
    assert not group.points


def test_who_has_missed_the_certificate_asks_for_it_and_counts_the_contribution():
    """The publisher, a, never had d's first one: it was handed over by another who has forgotten the certificate."""
    group = group_of()
    begin(group)
    deliver(group)
    apply(group)
    group.links["a"].disputes.signer = Signer(MADE["a"], 3, {name: f"{name}1" for name in NAMES})
    begin(group)
    group.links["d"].sending = lambda: True  # also while something is on its way: it has no certificate
    seen = deliver(group)
    asked = [(to, body_of(header).of) for s, to, header, _ in seen if header.kind == data_pb2.CONTRIBUTION_REQUEST]
    assert sorted(asked) == [("b", 1), ("c", 2), ("d", 3)]
    assert [body_of(header).certificate for header in contributions(seen)].count(b"") == 12
    assert group.links["a"].results[0].contributors == (0, 1, 2, 3)
    apply(group)
    assert not group.points


def test_a_lost_first_message_is_asked_for_and_comes_with_its_certificate():
    group = group_of()
    begin(group)
    first = {"d": True}
    deliver(group, lambda s, t, header: s == "d" and t == "a" and first.pop("d", False))
    assert not any(link.complete for link in group.links.values())
    group.now += 60.0
    for link in group.links.values():
        link.tick()
    assert [body_of(header).certificate for header in contributions(deliver(group))] == [MADE_DER["d"]]
    apply(group)
    assert not group.points


MADE_DER = {name: Signer(MADE[name], 3, {}).certificate for name in NAMES}


@pytest.mark.parametrize("forged", [b"", b"x" * 70, b"0" * 64])
def test_a_short_signature_that_is_none_is_refused(forged):
    group = group_of()
    begin(group)
    deliver(group)
    apply(group)
    begin(group)
    for sender, to, header, _ in group.mail:
        if sender == "d" and to == "a":
            body_of(header).signature = forged
    seen = deliver(group)
    assert group.points == [("a", "d", UNSIGNED)]
    assert not any(header.kind == data_pb2.CONTRIBUTION_REQUEST for _, _, header, _ in seen)
    assert (0, 3) not in group.links["a"].rounds.open.contributions


def test_a_signature_of_the_round_before_is_refused():
    group = group_of()
    begin(group)
    old = {to: body_of(h).signature for s, to, h, _ in deliver(group) if s == "d" and h.kind == data_pb2.CONTRIBUTION}
    apply(group)
    begin(group)
    for sender, to, header, _ in group.mail:
        if sender == "d" and to == "a":
            body_of(header).signature = old[to]
    deliver(group)
    assert group.points == [("a", "d", UNSIGNED)]


def test_who_never_shows_its_certificate_is_asked_once_and_refused():
    group = group_of()
    begin(group)

    def strip(sender, to, header):
        if sender == "d":
            header.contribution.ClearField("certificate")
        return False

    seen = deliver(group, strip)
    assert [to for s, to, header, _ in seen if header.kind == data_pb2.CONTRIBUTION_REQUEST and s == "a"] == ["d"]
    assert group.points == [("a", "d", UNSIGNED)]
    assert (0, 3) not in group.links["a"].rounds.open.contributions


def test_a_proof_that_is_shown_has_the_certificate_though_neither_contribution_had():
    """d sends b the opposite in the second round; c, who is shown the proof, has never seen its certificate."""
    group, other = group_of(), group_of()
    for each in (group, other):
        begin(each)
        deliver(each)
        apply(each)
    begin(group)
    other.links["d"].exchange.section.x.mul_(-3)
    other.links["d"].begin()
    (opposite,) = [(header, data) for _, to, header, data in other.mail if to == "b"]
    assert not body_of(opposite[0]).certificate
    group.mail = [(s, t, *(opposite if (s, t) == ("d", "b") else (h, data))) for s, t, h, data in group.mail]
    group.links["c"].disputes.signer = Signer(MADE["c"], 3, {name: f"{name}1" for name in NAMES})
    seen = deliver(group)
    shown = [header for s, _, header, _ in seen if header.kind == data_pb2.EQUIVOCATION]
    assert shown and all(body_of(header).certificate == MADE_DER["d"] for header in shown)
    assert {(by, node) for by, node, why in group.points if "signed two different" in why} == {
        (by, "d") for by in "abc"
    }
    assert len(group.points) == 3
