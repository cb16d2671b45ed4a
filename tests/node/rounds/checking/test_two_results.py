"""A publisher that tells one member one result and another another is proven to, before histories are compared."""

from dataclasses import replace

import pytest
import torch
from certificates import identities
from header_bodies import body_of
from round_group import Group

from farflung.node.rounds.checking.audit import PROVEN
from farflung.node.rounds.checking.receipts import PATIENCE_S, Receipt, Receipts, said_in
from farflung.node.rounds.checking.signed import Signer
from farflung.node.rounds.protocol.headers import received_result, result_header
from farflung.node.rounds.protocol.messages import Result
from farflung.proto import data_pb2

NAMES = "abcd"
MADE = identities(NAMES)
SIGNERS = {name: Signer(MADE[name], 3, {one: f"{one}1" for one in NAMES}) for name in NAMES}
CASES = [
    *[(*pattern, "d", to) for pattern in (("publishers", "none"), ("publishers", "int8")) for to in ("a", "ab", "abc")],
    *[("two_level", "none", "d", to) for to in ("c", "ab")],
    *[("phases", "powersgd:rank=1", "c", to) for to in ("a", "ab", "abd")],
]


def group_of(pattern, codec, signers=SIGNERS, publishers=""):
    group = Group(pattern, codec, [1.0] * 4, signers=signers, publishers=publishers)
    group.points, group.parted = [], []
    for name, link in group.links.items():
        link.outlet.refuse = lambda node, why, points=1, by=name: group.points.append((by, node, why, points))
        link.outlet.diverged = lambda node, why, by=name: group.parted.append((by, node))
    return group


def again(liar, header, data):
    """What a liar with its own key publishes instead: another server error."""
    result = received_result(header.result, memoryview(bytes(data)))
    other = replace(result, error=result.error ^ 1)
    signature = SIGNERS[liar].attestation(
        liar, body_of(header).section, body_of(header).round, body_of(header).part, said_in(other)
    )
    certificate = body_of(header).certificate or SIGNERS[liar].certificate
    signed = replace(other, signature=signature, certificate=certificate)
    return result_header(body_of(header).section, body_of(header).round, body_of(header).chain, signed)


def round_(group, liar="", to="", at=0):
    """A round whose messages all arrive. In round ``at`` the results of ``liar`` that reach ``to`` are others."""
    for link in group.links.values():
        link.begin()
    deliver_all(group, liar, to, at)


def deliver_all(group, liar="", to="", at=0):
    while group.mail:
        sender, receiver, header, data = group.mail[0]
        told = header.kind == data_pb2.RESULT and body_of(header).round == at and sender == liar and receiver in to
        if told and group.links[liar].rounds.plan.parts[body_of(header).part].publisher == liar:
            group.mail[0] = sender, receiver, again(liar, header, data), data
        group.deliver(0)


def apply_all(group):
    for name, link in group.links.items():
        if link.complete:
            group.apply(name)


def pass_time(group, seconds=PATIENCE_S):
    group.now += seconds
    for link in group.links.values():
        link.tick()
    deliver_all(group)


@pytest.mark.parametrize("pattern,codec,liar,to", CASES)
def test_a_publisher_of_two_results_is_named_by_all_before_histories_are(pattern, codec, liar, to):
    group = group_of(pattern, codec)
    round_(group, liar, to, 1)
    apply_all(group)
    assert not group.points
    round_(group, liar, to, 1)
    honest = set(NAMES) - {liar}
    told = {(by, node, points) for by, node, why, points in group.points if "two different results" in why}
    assert told == {(by, liar, PROVEN) for by in honest}
    assert {node for _, node, _, _ in group.points} == {liar}, "nobody else is blamed"
    assert not [pair for pair in group.parted if honest.issuperset(pair)], "the coordinator hears of the liar first"
    pass_time(group)
    if len(to) < 3 and pattern != "two_level":
        assert [pair for pair in group.parted if honest.issuperset(pair)], "then histories are compared after all"


def test_a_publishers_list_in_all_to_all_is_signed_as_well():
    group = group_of("all_to_all", "none")
    round_(group, "a", "b", 1)
    apply_all(group)
    round_(group, "a", "b", 1)
    assert {(by, node) for by, node, why, _ in group.points if "two different results" in why} == {
        (by, "a") for by in "bcd"
    }


def test_two_results_sent_to_one_member_prove_it_as_well():
    group = group_of("publishers", "none")
    said = False
    for link in group.links.values():
        link.begin()
    while group.mail:
        sender, to, header, data = group.mail[0]
        if header.kind == data_pb2.RESULT and sender == "d" and to == "a" and not said:
            said = True
            group.mail.append((sender, to, again("d", header, data), data))
        group.deliver(0)
    assert {(by, node) for by, node, _, _ in group.points} == {(by, "d") for by in "abc"}


@pytest.mark.parametrize("how", ["other words", "no signature", "another's certificate"])
def test_who_hands_on_what_its_publisher_has_not_signed_is_refused_and_no_other(how):
    group = group_of("two_level", "none")
    takers = {part.taker(i) for part in group.links["a"].rounds.plan.parts for i in range(4)}
    handed = []
    for link in group.links.values():
        link.begin()
    while group.mail:
        sender, to, header, _ = group.mail[0]
        part = group.links["a"].rounds.plan.parts[body_of(header).part]
        if header.kind == data_pb2.RESULT and sender != part.publisher and to != part.publisher:
            handed.append((sender, to))
            if how == "other words":
                body_of(header).digests[0] ^= 1
            elif how == "no signature":
                body_of(header).signature = b""
            else:
                body_of(header).certificate = SIGNERS[sender].certificate
        group.deliver(0)
    assert handed and takers
    assert {(by, node) for by, node, _, _ in group.points} == {(to, sender) for sender, to in handed}
    assert all("has not signed" in why and points == 10 for _, _, why, points in group.points)
    assert not any(group.links[to].complete for _, to in handed)


def test_a_signed_round_has_the_same_bits_and_certificates_come_once():
    plain, group = group_of("publishers", "int8", None), group_of("publishers", "int8")
    for number in (1, 2, 3):
        for one in (plain, group):
            for link in one.links.values():
                link.begin()
            certificates = []
            while one.mail:
                certificates.append(bool(getattr(body_of(one.mail[0][2]), "certificate", b"")))
                one.deliver(0)
            apply_all(one)
        assert any(certificates) == (number == 1)
    assert not group.points and not group.parted
    for name in NAMES:
        assert torch.equal(*(one.links[name].exchange.section.g for one in (plain, group)))
        assert plain.links[name].exchange.section.chain == group.links[name].exchange.section.chain


def test_who_only_claims_another_history_shows_no_lie_and_is_reported_at_once():
    group = group_of("publishers", "none")
    round_(group)
    apply_all(group)
    group.links["d"].exchange.section.chain ^= 1
    group.links["d"].rounds.chain ^= 1
    round_(group)
    assert not group.points
    assert {pair for pair in group.parted if pair[0] != "d"} == {(by, "d") for by in "abc"}


def test_who_shows_no_receipts_is_waited_for_only_a_while():
    group = group_of("publishers", "none")
    round_(group)
    apply_all(group)
    group.links["d"].rounds.chain ^= 1
    for link in group.links.values():
        link.begin()
    group.mail = [mail for mail in group.mail if mail[0] != "d" or mail[2].kind != data_pb2.RECEIPTS]
    while group.mail:
        if group.mail[0][0] == "d" and group.mail[0][2].kind == data_pb2.RECEIPTS:
            group.mail.pop(0)
            continue
        group.deliver(0)
    assert not [pair for pair in group.parted if pair[0] != "d"]
    pass_time(group)
    assert {pair for pair in group.parted if pair[0] != "d"} == {(by, "d") for by in "abc"}


def test_no_proof_of_two_results_can_be_made_up():
    group = group_of("publishers", "none")
    round_(group)
    apply_all(group)
    held = group.links["a"].disputes.receipts._held[1, 3]
    wrong = held._replace(said=b"x" * 32)
    for both in ((held, held), (held, wrong), (wrong, held), (held, held._replace(round=2)), (held,)):
        shown = data_pb2.Equivocation(section="stage-0", round=1, part=3, of=3, certificate=SIGNERS["d"].certificate)
        header = data_pb2.Header(kind=data_pb2.EQUIVOCATION, equivocation=shown)
        group.mail.append(("b", "c", header, b"".join(one.written() for one in both)))
    other = Receipt(1, 2, held.said, held.signature)  # of another publisher's part
    group.mail.append(("b", "c", header, held.written() + other.written()))
    group.deliver_all()
    assert [(by, node, points) for by, node, _, points in group.points] == [("c", "b", PROVEN)] * 6


def test_made_up_receipts_are_the_fault_of_who_shows_them():
    group = group_of("publishers", "none")
    round_(group)
    held = group.links["a"].disputes.receipts._held[1, 3]
    for data in (held._replace(said=b"x" * 32).written(), held.written()[:-1]):
        header = data_pb2.Header(kind=data_pb2.RECEIPTS, receipts=data_pb2.Receipts(section="stage-0", round=2))
        group.mail.append(("b", "c", header, data))
        with pytest.raises(ValueError, match=r"has not signed|no receipts"):  # the trainer refuses the sender for it
            group.deliver(len(group.mail) - 1)
    assert not group.points


def test_receipts_of_long_ago_go():
    plan = group_of("publishers", "none").links["a"].rounds.plan
    kept = Receipts(SIGNERS["a"], plan, "a")
    for number in range(1, 200):
        kept.signed(number, Result(0, (0,), (1,)))
        kept.applied(number)
    assert len(kept._held) == 64 and min(kept._held) == (136, 0)


@pytest.mark.parametrize("to", ["b", "bc"])
def test_where_one_member_publishes_all_the_others_tell_each_other_their_h(to):
    group = group_of("publishers", "none", publishers="a")
    round_(group, "a", to, 1)
    apply_all(group)
    assert not group.points
    round_(group, "a", to, 1)
    assert {(by, node) for by, node, _, _ in group.points} == {(by, "a") for by in "bcd"}
