"""Gradient mode offers short parts one after the other: the same bits, in any order, in the memory of the window."""

import random
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from round_group import NUMEL, Group

from farflung.node.rounds.protocol import window
from farflung.proto import data_pb2
from farflung.proto.messages.bodies import of_round

CUTS = 8


def gradients(group: Group, number: int = 0) -> None:
    for index, link in enumerate(group.links.values()):
        chance = torch.Generator().manual_seed(10 * number + index)
        link.exchange.section.grad.copy_(torch.randn(NUMEL, generator=chance))


def bytes_held(link) -> int:
    """Bytes of contributions and results that a member holds in the open round."""
    current = link.rounds.open
    return sum(
        sum(map(len, sent.payload)) if isinstance(sent.payload, tuple) else len(sent.payload)
        for sent in (*current.contributions.values(), *current.results.values(), *current.handed.values())
    )


def finish(group: Group) -> list[torch.Tensor]:
    for link in group.links.values():
        assert link.complete
        if link.exchange.carries:
            link.exchange.commit_gradient(link.updates())
        else:
            link.place_all()
            link.exchange.commit_gradient()
        link.finish(link.results, 16)
    return [link.exchange.section.grad.clone() for link in group.links.values()]


@pytest.fixture(autouse=True, scope="module")
def narrow():
    """A window of no bytes: only so many parts as keep every publisher busy."""
    before, window.IN_FLIGHT = window.IN_FLIGHT, 0
    yield
    window.IN_FLIGHT = before


@settings(max_examples=40)
@given(
    st.sampled_from(["publishers", "all_to_all", "two_level"]),
    st.sampled_from(["none", "int8", "int4"]),
    st.integers(2, 4),
    st.integers(0, 2**32),
)
def test_any_order_with_duplicates_gives_the_bits_of_all_parts_at_once(pattern, codec, count, seed):
    chance = random.Random(seed)
    short, whole = (Group(pattern, codec, [1.0] * count, gradient=True, cuts=CUTS) for _ in range(2))
    for number in range(2):
        gradients(short, number)
        gradients(whole, number)
        for name in chance.sample(sorted(short.links), count):
            short.links[name].begin()
        while short.mail:
            short.deliver(chance.randrange(len(short.mail)), keep=chance.random() < 0.2)
        window.IN_FLIGHT = 1 << 30
        for link in whole.links.values():
            link.begin()
        while whole.mail:
            whole.deliver(0)
        window.IN_FLIGHT = 0
        found, wanted = finish(short), finish(whole)
        assert all(torch.equal(one, wanted[0]) for one in (*found, *wanted))
        chains = {link.exchange.section.chain for group in (short, whole) for link in group.links.values()}
        assert len(chains) == 1


@pytest.mark.parametrize("pattern", ["publishers", "all_to_all"])
def test_a_member_never_holds_more_than_the_window(pattern):
    group = Group(pattern, "none", [1.0] * 3, gradient=True, cuts=CUTS)
    gradients(group)
    for link in group.links.values():
        link.begin()
    most = 0
    while group.mail:
        group.deliver(0)
        most = max(most, *map(bytes_held, group.links.values()))
    finish(group)
    parts = len(group.links["a"].rounds.plan.parts)
    publishers = len({part.publisher for part in group.links["a"].rounds.plan.parts})
    one = 4 * NUMEL // parts + 64  # a part's bytes with its blob's head
    # Of each part in flight a member may hold its own, all others' and the result; one more is on its way out.
    assert most <= (window.EACH * publishers + 2) * 4 * one
    assert most < parts * one * 2, "less than what all contributions of the round would take"


@settings(max_examples=12)
@given(
    st.sampled_from(["publishers", "all_to_all", "two_level"]),
    st.sampled_from(["int8", "int4", "topk:ratio=0.2,feedback=true"]),
    st.integers(0, 2**32),
)
def test_with_error_feedback_own_bytes_are_free_before_the_commit_and_no_bit_differs(pattern, codec, seed):
    """What an encoding lost takes the gradient's place as soon as its part's sum is safe, instead of at the commit."""
    chance = random.Random(seed)
    early, late = (Group(pattern, codec, [1.0] * 3, gradient=True, cuts=CUTS) for _ in range(2))
    for link in late.links.values():
        link.offering._settle = lambda current: None
    for number in range(3):
        for group in (early, late):
            gradients(group, number)
            for link in group.links.values():
                link.begin()
        while early.mail:
            early.deliver(chance.randrange(len(early.mail)), keep=chance.random() < 0.2)
        late.deliver_all()
        for name, link in early.links.items():
            own = link.rounds.index[name]
            kept = [sent for (_, of), sent in link.rounds.open.contributions.items() if of == own and len(sent.payload)]
            assert len(kept) == (len(link.rounds.parts) if pattern == "all_to_all" else 0)
            assert all(len(sent.payload) for sent in link.exchange.encoder.own.values()) == (pattern == "all_to_all")
            before = late.links[name].exchange.section.feedback
            assert before is None or torch.equal(link.exchange.section.feedback, before), "changed before the commit"
        found, wanted = finish(early), finish(late)
        assert all(torch.equal(one, wanted[0]) for one in (*found, *wanted))
        for name, link in early.links.items():
            exchange, other = link.exchange, late.links[name].exchange
            assert torch.equal(exchange.section.feedback, other.section.feedback)
            assert exchange.errors.keys() == other.errors.keys()
            assert all(torch.equal(error, other.errors[part]) for part, error in exchange.errors.items())


def test_a_step_that_is_dropped_leaves_the_error_feedback_as_it_was():
    group = Group("publishers", "int8", [1.0, 1.0], gradient=True, cuts=CUTS)
    for number, bad in enumerate((False, True)):
        gradients(group, number)
        if bad:
            group.links["b"].exchange.section.grad[50] = float("nan")
        for link in group.links.values():
            link.begin()
        kept = [
            None if link.exchange.section.feedback is None else link.exchange.section.feedback.clone()
            for link in group.links.values()
        ]
        group.deliver_all()
        if not bad:
            finish(group)
    assert all(link.complete for link in group.links.values())
    for before, link in zip(kept, group.links.values(), strict=True):
        assert torch.equal(before, link.exchange.section.feedback)


def test_bytes_that_are_gone_are_not_sent_again_and_those_needed_are():
    group = Group("publishers", "none", [1.0, 1.0, 1.0], gradient=True, cuts=CUTS)
    gradients(group)
    for link in group.links.values():
        link.begin()
    lost = None
    while group.mail:
        sender, to, header, _ = group.mail[0]
        if lost is None and header.kind == data_pb2.RESULT and (sender, to) == ("a", "c"):
            lost = group.mail.pop(0)
        else:
            group.deliver(0)
    assert not group.links["c"].complete
    group.now = 6.0
    group.links["c"].tick()
    group.deliver_all()
    sums = finish(group)
    assert all(torch.equal(one, sums[0]) for one in sums)
    for link in group.links.values():  # a late request finds nothing, and is no reason for a complaint
        assert not link.rounds.result_wanted("c", 1, 0)
    assert not group.warnings


def test_a_gradient_that_is_not_finite_makes_every_member_drop_the_step():
    group = Group("publishers", "none", [1.0, 1.0], gradient=True, cuts=CUTS)
    gradients(group)
    group.links["b"].exchange.section.grad[50] = float("nan")
    for link in group.links.values():
        link.begin()
    group.deliver_all()
    assert all(not torch.isfinite(one).all() for one in finish(group))


@settings(max_examples=40)
@given(st.sampled_from(["publishers", "all_to_all"]), st.integers(2, 4), st.integers(0, 2**32))
def test_members_that_offer_in_different_orders_never_wait_for_each_other(pattern, count, seed):
    """As where a backward pass completes gradients in another order than another node's, or only at its end."""
    chance = random.Random(seed)
    group = Group(pattern, "none", [1.0] * count, gradient=True, cuts=CUTS)
    gradients(group)
    for link in group.links.values():
        parts = list(link.rounds.plan.parts)
        chance.shuffle(parts)
        for part in parts[: chance.randrange(len(parts))]:
            link.offer([part])
            if group.mail and chance.random() < 0.5:
                group.deliver(chance.randrange(len(group.mail)))
        assert not link.complete
    for name in chance.sample(sorted(group.links), count):
        group.links[name].begin()
    while group.mail:
        group.deliver(chance.randrange(len(group.mail)))
    sums = finish(group)
    assert all(torch.equal(one, sums[0]) for one in sums)


@pytest.mark.parametrize(("pattern", "gradient"), [("publishers", True), ("all_to_all", False)])
def test_a_view_that_is_over_holds_no_message(pattern, gradient):
    group = Group(pattern, "none", [1.0, 1.0], gradient=gradient)
    gradients(group)
    for link in group.links.values():
        link.begin()
    link = group.links["a"]
    held = [weakref.ref(sent) for sent in link.rounds.open.contributions.values()]
    assert held
    group.mail.clear()
    link.drop()
    assert not any(one() for one in held)


def test_what_a_member_says_of_a_part_that_is_none_is_refused_and_ends_nobody():
    group = Group("publishers", "none", [1.0] * 3, gradient=True, cuts=CUTS)
    gradients(group)
    for link in group.links.values():
        link.begin()
    group.links["a"].handle("c", data_pb2.Held(section="stage-0", round=1, part=1 << 31), torch.empty(0).numpy())
    assert group.warnings == [("c", "round 1 of stage-0 has no part 2147483648")]
    group.deliver_all()
    sums = finish(group)
    assert all(torch.equal(one, sums[0]) for one in sums)


@pytest.mark.parametrize("pattern", ["publishers", "all_to_all"])
def test_a_sum_that_counts_what_a_member_has_not_offered_yet_is_refused(pattern):
    """Else its publisher could count anything in that member's name before it has offered, and nobody would compare."""
    ahead, group = (Group(pattern, "none", [1.0] * 3, gradient=True, cuts=CUTS) for _ in range(2))
    for one in (ahead, group):
        gradients(one)
    for link in ahead.links.values():
        link.begin()
    sums, said = [], []
    while ahead.mail:
        sender, to, header, data = ahead.mail[0]
        if (sender, to) == ("a", "b"):
            (sums if header.kind == data_pb2.RESULT else said).append((header, data))
        ahead.deliver(0)
    victim = group.links["b"]
    part = of_round(sums[0][0]).part
    victim.offer([one for one in victim.rounds.plan.parts if one.index != part][:1])
    for header, data in sums[:1]:
        group.mail.append(("a", "b", header, data))
        group.deliver(len(group.mail) - 1)
    forged = of_round(said[0][0])
    forged.part, forged.of = part, 1  # a contribution in the victim's own name
    group.mail.append(("a", "b", said[0][0], said[0][1]))
    group.deliver(len(group.mail) - 1)
    assert group.warnings and all(node == "a" for node, _ in group.warnings)
    assert f"a counted a contribution of b to part {part} that b has not made" in group.warnings[0][1]
    for link in group.links.values():
        link.begin()
    group.deliver_all()
    sums = finish(group)
    assert all(torch.equal(one, sums[0]) for one in sums)


@pytest.mark.parametrize("pattern", ["publishers", "all_to_all"])
def test_a_part_that_is_named_ready_again_is_not_offered_again(pattern):
    """Where its sum has taken the gradient's place, a second offer would be another one."""
    group = Group(pattern, "none", [1.0] * 3, gradient=True, cuts=CUTS)
    gradients(group)
    link = group.links["c"]
    link.offer(link.rounds.plan.parts[:4])
    link.offer(link.rounds.plan.parts)
    for one in group.links.values():
        one.begin()
    for _ in range(500):
        if group.mail:
            group.deliver(0)
            link.offer(link.rounds.plan.parts)
    assert not group.mail
    sums = finish(group)
    assert not group.warnings and all(torch.equal(one, sums[0]) for one in sums)
