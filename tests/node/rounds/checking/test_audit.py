"""A publisher's sum is made again by another member: lies are proven to all, and honest sums hold."""

import dataclasses

import pytest
import torch
import xxhash
from round_group import NUMEL, Group

from farflung.job.tables.robust import Robust
from farflung.node.rounds.checking.audit import PATIENCE, PROVEN
from farflung.node.rounds.protocol.payloads import contribution_of
from farflung.proto import data_pb2

CODECS = ["none", "int8", "cocktail:random=0.5,top=0.3,bits=4", "chunked_topk:k=512,bits=2,feedback=true"]
WEIGHTS = [1.0, 0.5, 1.0, 2.0]


class Audited(Group):
    """Members of which ``curious`` asks for every sum; points are kept."""

    def __init__(self, codec="int8", curious="c", robust=None, weights=WEIGHTS):
        self.points = []
        super().__init__("publishers", codec, weights, robust=robust)
        for name, link in self.links.items():
            link.auditor._share = 1.0
            link.auditor._dice = (lambda: 0.0) if name == curious else (lambda: 1.0)

    def refuse(self, node, why, points=1):
        self.points.append((node, points, why))

    def round(self, tamper=lambda *message: message):
        for name, link in self.links.items():
            step = torch.randn(NUMEL, generator=torch.Generator().manual_seed(ord(name) + link.rounds.applied))
            link.exchange.section.x.add_(step)
            link.begin()
        while self.mail:
            self.mail[0] = tamper(*self.mail[0])
            self.deliver(0)
        for name, link in self.links.items():
            if link.complete:
                self.apply(name)


def lying(group, change):
    """Publisher a makes something else of its sum, and keeps the server error that fits."""
    exchange = group.links["a"].exchange
    decide = exchange.decide

    def decide_wrongly(round, asked):
        result, refused = decide(round, asked)
        return (change(exchange, round, result) if asked.part == 0 else result), refused

    exchange.decide = decide_wrongly


def another_sum(exchange, round, result):
    made = contribution_of([exchange.terms.codec_of(round).encode(torch.full((24,), 0.1), seed=1, step=round, rank=0)])
    return dataclasses.replace(result, payload=made.payload, sizes=made.sizes, digest=made.digest)


@pytest.mark.parametrize("robust", [None, Robust("clip")], ids=["mean", "clip"])
@pytest.mark.parametrize("codec", CODECS)
def test_honest_sums_hold_in_every_round(codec, robust):
    shown = []
    group = Audited(codec, robust=robust)

    def watch(sender, to, header, data):
        shown.append((sender, to)) if header.kind == data_pb2.AUDIT else None
        return sender, to, header, data

    for _ in range(3):
        group.round(watch)
    assert not group.points and sorted(shown) == [(name, "c") for name in "abd" for _ in range(3)]


@pytest.mark.parametrize("codec", CODECS)
def test_a_sum_is_shown_as_it_began_also_after_its_publisher_has_applied_it(codec):
    group, late, shown = Audited(codec), [], []
    group.round()
    kept = [group.links[name].auditor._kept for name in "abd"]
    assert not any(kept), "what everybody holds is still kept"

    def hold_back(sender, to, header, data):
        if header.kind == data_pb2.RESULT_HELD and sender == "c" and to != "c":
            late.append((sender, to, header, data))
            return "c", "c", data_pb2.Header(kind=data_pb2.RESULT_HELD, held=data_pb2.Held()), b""
        return sender, to, header, data

    group.round(hold_back)
    assert all(link.rounds.applied == 2 for link in group.links.values())
    group.mail = late
    while group.mail:
        shown += [sender for sender, _, header, _ in group.mail[:1] if header.kind == data_pb2.AUDIT]
        group.deliver(0)
    assert sorted(shown) == list("abd") and not group.points
    assert not any(group.links[name].auditor._kept for name in "abd")


@pytest.mark.parametrize("codec", CODECS)
def test_a_sum_that_is_none_is_proven_to_everybody(codec):
    group = Audited(codec)
    lying(group, another_sum)
    group.round()
    assert (
        sorted((node, points) for node, points, _ in group.points) == [("a", PROVEN)] * 3
    )  # c has seen it, b and d too
    assert all("of the sum's norm away" in why or "server error is not" in why for _, _, why in group.points)


def test_a_server_error_that_the_sum_did_not_leave_is_a_lie():
    group = Audited()
    lying(group, lambda exchange, round, result: dataclasses.replace(result, error=result.error ^ 1))
    group.round()
    assert {(node, points) for node, points, _ in group.points} == {("a", PROVEN)}
    assert all("what it keeps as server error" in why for _, _, why in group.points)


@pytest.mark.parametrize("length", [3, 4, 4000])
def test_a_server_error_of_another_length_is_a_lie(length):
    """Whoever named it in the round before shows it: its digest is right, and nobody's process ends."""
    group, wrong = Audited(curious=""), bytes(length)
    named = xxhash.xxh3_64_intdigest(wrong)
    lying(group, lambda exchange, round, result: dataclasses.replace(result, error=named))
    group.round()
    assert not group.points
    auditor = group.links["a"].auditor
    shown = auditor.shown
    auditor.shown = lambda round, part: [*shown(round, part)[:-1], wrong]
    group.links["c"].auditor._dice = lambda: 0.0
    group.round()
    assert {(node, points) for node, points, _ in group.points} == {("a", PROVEN)}
    assert all(f"a server error of {length} bytes" in why for _, _, why in group.points)


def test_factors_of_a_robust_average_that_are_none_are_a_lie():
    group = Audited(robust=Robust("clip"))
    lying(group, lambda exchange, round, result: dataclasses.replace(result, factors=(1.0, 0.5, 1.0, 1.0)))
    group.round()
    assert {(node, points) for node, points, _ in group.points} == {("a", PROVEN)}
    assert all("other factors" in why for _, _, why in group.points)


def test_whoever_accuses_falsely_is_told_on_by_all_others():
    """c hands an honest sum on as if it were a lie, and then other bytes."""
    group, copies = Audited(), []

    def accuse(sender, to, header, data):
        if header.kind == data_pb2.AUDIT and sender == "a":
            copies.extend(("c", other, header, data) for other in "bd")
        return sender, to, header, data

    group.round(accuse)
    assert not group.points
    group.mail = copies
    group.deliver(0)
    group.mail[0] = (*group.mail[0][:3], bytes(len(group.mail[0][3])))
    group.deliver(0)
    assert [(node, points) for node, points, _ in group.points] == [("c", PROVEN)] * 2
    assert "what it shows holds" in group.points[0][2] and "other bytes" in group.points[1][2]


def test_a_publisher_that_counts_other_bytes_than_were_sent_is_named_by_their_sender():
    group = Audited()
    lying(group, lambda exchange, round, result: dataclasses.replace(result, digests=(1, *result.digests[1:])))
    group.round()
    lying(group, lambda exchange, round, result: dataclasses.replace(result, digests=(*result.digests[:3], 1)))
    group.round()
    named = [why for node, _, why in group.points if node == "a"]
    assert "a counted another contribution of d" in named
    assert any("other bytes than the result's digests say" in why for why in named)


def test_a_publisher_that_shows_nothing_is_refused_in_the_end():
    def swallow(sender, to, header, data):
        if header.kind == data_pb2.AUDIT and sender == "a":
            return "b", "b", data_pb2.Header(kind=data_pb2.RESULT_HELD, held=data_pb2.Held()), b""
        return sender, to, header, data

    group = Audited()
    for _ in range(PATIENCE + 1):
        group.round(swallow)
    assert [(node, points) for node, points, _ in group.points] == [("a", PROVEN)]
    assert "does not show what went into part 0 of round 1" in group.points[0][2]


def test_showing_takes_the_part_of_the_traffic_that_it_may():
    """The chance of being asked, times what is shown, is the share of what a publisher sends."""
    group = Audited("int8")
    link = group.links["c"]
    asked = []
    link.auditor._dice = lambda: asked.append(1) or 1.0
    group.round()
    assert len(asked) == 3, "one throw for each part of another's"
    encoder = link.exchange.encoder
    chance = 0.01 * (2 * 3 / 4 * encoder.size_of(None)) / (5 * encoder.size_of(0))
    for offered in (encoder.own, {0: encoder.own[0]}, {}):  # as many of the parts, when the result comes
        encoder.own = offered
        for share, dice, wanted in ((0.01, chance / 3.01, True), (0.01, chance / 2.99, False), (0.0, 0.0, False)):
            link.auditor._share, link.auditor._dice, link.auditor._asked = share, (lambda dice=dice: dice), {}
            assert link.auditor.wants(1, 0) == wanted
