"""A member that contributes one thing to the publisher and another to the rest is proven to, and stops nobody."""

from dataclasses import replace

import pytest
import torch
from certificates import identities
from header_bodies import body_of
from round_group import Group

from farflung.node.rounds.checking.audit import PROVEN
from farflung.node.rounds.checking.signed import Signer
from farflung.node.rounds.protocol.messages import Contribution
from farflung.proto import data_pb2

NAMES = "abcd"
MADE = identities(NAMES)
SESSIONS = {name: f"{name}1" for name in NAMES}
SIGNERS = {name: Signer(MADE[name], 3, SESSIONS) for name in NAMES}


def begun(signers=SIGNERS, tamper=lambda sender, to, header, data: (header, data)):
    """A group of four whose contributions are on their way, those of d as ``tamper`` makes them."""
    group = Group("all_to_all", "none", [1.0] * 4, signers=signers)
    group.links["d"].outlet.refuse = lambda *said: None  # what the liar says is not what this is about
    for link in group.links.values():
        link.begin()
    group.mail = [(s, t, *tamper(s, t, header, data)) for s, t, header, data in group.mail]
    return group


def other(signers=SIGNERS):
    """What d sends to each part, if it contributes the opposite."""
    group = Group("all_to_all", "none", [1.0] * 4, signers=signers)
    group.links["d"].exchange.section.x.mul_(-1)
    group.links["d"].begin()
    return {body_of(header).part: (header, data) for sender, _, header, data in group.mail if sender == "d"}


def lying(to, signers=SIGNERS):
    """d sends these members the opposite of what it sends the others."""
    opposite = other(signers)
    return lambda s, t, header, data: opposite[body_of(header).part] if s == "d" and t in to else (header, data)


def run(group, forward=True):
    while group.mail:
        group.deliver(0 if forward else -1)


def same_bits(group, names):
    for name in names:
        group.apply(name)
    first, *rest = (group.links[name].exchange.section for name in names)
    return all(torch.equal(first.g, one.g) and first.chain == one.chain for one in rest)


@pytest.mark.parametrize("to", ["bc", "b", "a", "abc"])
@pytest.mark.parametrize("forward", [True, False])
def test_who_sends_different_members_different_things_is_named_by_all_and_the_round_goes_on(to, forward):
    group = begun(tamper=lying(to))
    run(group, forward)
    assert all(group.links[name].complete for name in "abc")
    assert same_bits(group, "abc")
    named = [(node, why) for node, why in group.warnings]
    if to == "abc":
        assert not named, "everybody has the same: its own copy is its own affair"
        return
    assert [node for node, _ in named] == ["d"] * 3 and all("signed two different" in why for _, why in named)


def test_each_who_holds_the_proof_gives_points_that_evict_together():
    group, points = begun(tamper=lying("bc")), []
    for link in map(group.links.get, "abc"):
        link.outlet.refuse = lambda node, why, given=1: points.append((node, given))
    run(group)
    assert points == [("d", PROVEN)] * 3


def test_whoever_signs_nothing_to_some_is_named_by_them_and_stops_nobody():
    def tamper(s, t, header, data):
        header, data = lying("bc")(s, t, header, data)
        if s == "d" and t in "bc":
            body_of(header).signature = b"x" * 70
        return header, data

    group = begun(tamper=tamper)
    run(group)
    assert all(group.links[name].complete for name in "abc") and same_bits(group, "abc")
    assert group.warnings == [("d", "a contribution of d that d has not signed")] * 2


def test_the_publisher_counts_nothing_that_is_not_signed():
    def tamper(s, t, header, data):
        if s == "d" and t == "a":
            body_of(header).certificate = b"x"
        return header, data

    group = begun(tamper=tamper)
    run(group)
    assert group.warnings == [("d", "a contribution of d that d has not signed")]
    assert (0, 3) not in group.links["a"].rounds.open.contributions


def test_a_publisher_that_counts_what_it_cannot_show_is_named_and_no_other():
    group = begun()
    forged = other()[0]
    while group.mail:
        sender, to, header, _ = group.mail[0]
        if sender == "a" and header.kind == data_pb2.RESULT:
            body_of(header).digests[3] += 1
        if sender == "a" and header.kind == data_pb2.CONTRIBUTION and header.contribution.HasField("of"):
            group.mail[0] = (sender, to, forged[0], forged[1])
            header = forged[0]
            body_of(header).of = 3
            body_of(header).signature = b""
        group.deliver(0)
        if not group.mail and group.now < 400:
            group.now += 60
            for link in group.links.values():
                link.tick()
    assert group.warnings and {node for node, _ in group.warnings} == {"a"}
    assert not any(group.links[name].complete for name in "bc")


def test_no_proof_can_be_made_up():
    group = begun()
    run(group)
    sent = group.links["a"].rounds.open.contributions[0, 3]
    shown = data_pb2.Equivocation(
        section="stage-0",
        round=1,
        of=3,
        digests=[sent.digest, sent.digest + 1],
        sizes=[len(sent.signature)] * 2,
        certificate=sent.certificate,
    )
    header = data_pb2.Header(kind=data_pb2.EQUIVOCATION, equivocation=shown)
    group.mail.append(("b", "c", header, sent.signature * 2))
    again = data_pb2.Header()
    again.CopyFrom(header)
    again.equivocation.digests[1] = sent.digest  # the same twice is none
    group.mail.append(("b", "c", again, sent.signature * 2))
    run(group)
    assert [node for node, _ in group.warnings] == ["b", "b"]


def test_what_is_signed_holds_for_one_place_and_one_life_only():
    sent = SIGNERS["d"].signed("d", "stage-0", 5, 0, Contribution(b"", (), 7))
    a = SIGNERS["a"]
    assert a.vouches("d", "stage-0", 5, 0, sent)
    assert not a.vouches("d", "stage-0", 6, 0, sent) and not a.vouches("d", "stage-0", 5, 1, sent)
    assert not a.vouches("d", "tied", 5, 0, sent) and not a.vouches("c", "stage-0", 5, 0, sent)
    assert not a.vouches("d", "stage-0", 5, 0, replace(sent, digest=8))
    assert not Signer(MADE["a"], 4, SESSIONS).vouches("d", "stage-0", 5, 0, sent), "another view"
    assert not Signer(MADE["a"], 3, {**SESSIONS, "d": "d2"}).vouches("d", "stage-0", 5, 0, sent), "another session"
    assert not Signer(replace(MADE["a"], run="other"), 3, SESSIONS).vouches("d", "stage-0", 5, 0, sent)
    strange = Signer(identities("d")["d"], 3, SESSIONS).signed("d", "stage-0", 5, 0, Contribution(b"", (), 7))
    assert not a.vouches("d", "stage-0", 5, 0, strange), "of another CA"
    assert not a.vouches("d", "stage-0", 5, 0, replace(sent, certificate=b"x"))
    assert not a.vouches("d", "stage-0", 5, 0, replace(sent, certificate=sent.certificate * 9))


def test_two_members_and_other_patterns_sign_nothing():
    for pattern, weights in (("all_to_all", [1.0] * 2), ("publishers", [1.0] * 4)):
        group = Group(pattern, "none", weights, signers=SIGNERS)
        for link in group.links.values():
            link.begin()
        assert not any(body_of(header).signature or body_of(header).certificate for _, _, header, _ in group.mail)


def test_without_tls_it_is_refused_and_cannot_be_attributed():
    group = begun(signers=None, tamper=lying("bc", None))
    run(group)
    assert not group.links["b"].complete and {node for node, _ in group.warnings} == {"a"}
