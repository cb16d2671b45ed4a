"""Rounds with masks: nobody sees a member's levels, and the sum is the one without masks."""

import numpy as np
import pytest
import torch
from header_bodies import body_of
from hypothesis import given, settings
from hypothesis import strategies as st
from windows import Windows, facts_of

from farflung.compress import CodecError
from farflung.compress.summable.secure import Pairwise
from farflung.job.schema import Job
from farflung.node.rounds import exchanges
from farflung.node.rounds.arithmetic.exchange import Exchange
from farflung.node.rounds.protocol.messages import Contribution, Decide, Part, RoundPlan
from farflung.node.rounds.protocol.payloads import Refused
from farflung.node.state.sections.section import Kept, Layout, Section
from farflung.node.training.modes.delta_mode import DeltaMode
from farflung.proto import data_pb2
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

pytestmark = pytest.mark.usefixtures("nobody_late")

STEPS = 4
THREE = Plan(pipelines=(("a",), ("b",), ("c",)), stages=((0, 2),), microbatches=(2, 1, 1))


def job_of(mode: str, secure: bool, **more) -> Job:
    return Job.model_validate(
        {
            "run": {"name": "masked", "seed": 3, "steps": STEPS},
            "model": {"family": "llama", "layers": 1, "width": 16, "heads": 2, "context": 8, "tie": False},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 8, "microbatch": 2, "learning_rate": 3e-3, "eval_every": 0},
            "updates": {"mode": mode, "codec": "intsgd", "secure": secure, **more},
            "checkpoint": {"every": 0},
        }
    )


def hub_of(job: Job, names) -> Hub:
    facts = facts_of(samples=40, validation=0, context=8, vocabulary=17, steps=STEPS)
    data = Windows(facts)
    hub = Hub(job, facts)
    for name in names:
        hub.start(name, data)
    return hub


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.lists(st.integers(0, 60), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_masks_cancel_in_the_sum_of_all_and_in_no_other(members, sizes, seed):
    random = np.random.default_rng(seed)
    names = [f"m{i}" for i in range(members)]
    parties = {name: Pairwise(name, names) for name in names}
    for one in parties.values():
        for name, other in parties.items():
            if other is not one:
                one.take(name, other.public)
    words = {n: [random.integers(0, 255, size, dtype=np.uint16) for size in sizes] for n in names}
    sent = {name: parties[name].masked(words[name], b"round 1") for name in names}
    for place, size in enumerate(sizes):
        plain = sum(words[name][place] for name in names)
        assert np.array_equal(sum(sent[name][place] for name in names), plain)
        if size > 20:
            assert not np.array_equal(sum(sent[name][place] for name in names[1:]), plain - words[names[0]][place])
    again = parties["m0"].masked(words["m0"], b"round 2")
    assert sum(sizes) < 20 or any(not np.array_equal(a, b) for a, b in zip(again, sent["m0"], strict=True))


def test_keys_that_are_none():
    one = Pairwise("a", ("a", "b", "c"))
    with pytest.raises(CodecError, match="b, c"):
        one.masked([np.zeros(3, np.uint16)], b"")
    with pytest.raises(CodecError, match="is none"):
        one.take("b", bytes(32))  # of low order: everybody knows what is agreed with it
    one.take("b", Pairwise("b", ("a", "b")).public)
    with pytest.raises(CodecError, match="none is wanted"):
        one.take("b", Pairwise("b", ("a", "b")).public)


@pytest.mark.parametrize("mode", ["delta", "gradient"])
def test_the_run_is_the_one_without_masks_and_what_travels_is_noise(mode, monkeypatch):
    # The last rounds too: else the two bring in the rest in different ways.
    monkeypatch.setattr(exchanges, "CLOSING", "")
    monkeypatch.setattr(DeltaMode, "_close", lambda self, due=0: self._flush(self.fragments - due))
    found, sent = {}, {False: [], True: []}
    for secure in (False, True):
        hub = hub_of(job_of(mode, secure), THREE.nodes)

        def tap(sender, to, header, data, kept=sent[secure]):
            if header.kind == data_pb2.CONTRIBUTION:
                kept.append((body_of(header).part, list(body_of(header).sizes), bytes(data)))
            return data

        hub.tamper = tap
        hub.begin(THREE, THREE.nodes, checkpoint=0)
        outcome = hub.finish(THREE.nodes)
        assert not hub.errors and not outcome.warnings
        assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
        found[secure] = hub.trainers["a"].state.sections["stage-0"].g
    torch.testing.assert_close(found[True], found[False], rtol=1e-5, atol=1e-6)
    assert len(sent[True]) == len(sent[False]) > 0
    parts = hub.trainers["a"].training.view.links["stage-0"].rounds.plan.parts
    levels = {secure: [one for one in sent[secure] if parts[one[0]].phase == 1] for secure in sent}
    noise = [byte for _, sizes, data in levels[True] for byte in low_bytes(sizes, data)]
    plain = [byte for _, sizes, data in levels[False] for byte in low_bytes(sizes, data)]
    assert entropy(noise) > 7.9 > entropy(plain) + 2  # bits of a byte


def low_bytes(sizes, data):
    """The low bytes of a contribution's levels: after each blob's byte that says how many bits a level has."""
    start = 0
    for size in sizes:
        if size > 256 * 10 // 8:
            yield from data[start + 1 : start + 1 + (size - 1) * 8 // max(8, data[start])]
        start += size


def entropy(values) -> float:
    counts = np.bincount(np.array(values, np.uint8), minlength=256) / len(values)
    return float(-(counts[counts > 0] * np.log2(counts[counts > 0])).sum())


NAMES = ("a", "b", "c")
SHAPES = {"w": (40, 30), "b": (7,)}
NUMEL = 40 * 30 + 7
PHASES = tuple(Part(phase, "a", 0, NUMEL, 0, phase) for phase in range(2))
PLAN = RoundPlan("stage-0", NAMES, (2.0, 1.0, 1.0), PHASES, "phases", phases=2, whole=True)


def group_of(secure) -> list[Exchange]:
    """Three members that have learnt different things; those with masks know each other's keys."""
    group = []
    for seed, name in enumerate(NAMES):
        section = Section(Layout.of("stage-0", SHAPES), False, Kept(), torch.device("cpu"))
        section.x.copy_(torch.randn(NUMEL, generator=torch.Generator().manual_seed(seed)) * 0.01)
        group.append(Exchange(section, PLAN, name, "intsgd", seed=7, secure=secure))
    for one in group if secure else ():
        for other, name in zip(group, NAMES, strict=True):
            if other is not one:
                one.phased.masks.take(name, other.phased.masks.public)
    return group


def decided(group, sent, part):
    return group[0].decide(1, Decide(part, tuple(enumerate(sent))))


def test_levels_add_up_to_the_same_bits_as_without_masks():
    totals = []
    for secure in (False, True):
        group = group_of(secure)
        scale, _ = decided(group, [one.contributions(1)[0] for one in group], 0)
        result, refused = decided(group, [one.advance(scale) for one in group], 1)
        assert not refused and result.contributors == (0, 1, 2)
        for one in group:
            one.check(1, {0: scale, 1: result}, {})
        updates = [torch.cat([piece.values() for _, piece in one.updates(1, {}, {})]) for one in group]
        assert torch.equal(updates[0], updates[1]) and torch.equal(updates[0], updates[2])
        totals.append(updates[0])
    torch.testing.assert_close(totals[0], totals[1], rtol=1e-6, atol=0)  # the scale is rounded to a multiple of 2^-32
    with pytest.raises(RuntimeError, match="masks have been used"):
        group[0].contributions(1)


@pytest.mark.parametrize("phase", [0, 1])
def test_a_sum_without_somebody_is_void(phase):
    group = group_of(True)
    sent = [one.contributions(1)[0] for one in group]
    if phase:
        scale, _ = decided(group, sent, 0)
        sent = [one.advance(scale) for one in group]
    assert not decided(group, sent[:2], phase)[0].sizes
    short = Contribution((sent[2].payload[0][:-1], *sent[2].payload[1:]), sent[2].sizes, 1)
    short = Contribution(short.payload, tuple(len(piece) for piece in short.payload), 1)
    result, refused = decided(group, [*sent[:2], short], phase)
    assert not result.sizes and [one.member for one in refused] == ["c"]


@pytest.mark.parametrize("lie", ["scale", "history"])
def test_who_is_told_something_else_stays_hidden(lie):
    """A publisher that gives one member another scale, to have only its levels in the sum, gets noise."""
    group = group_of(True)
    if lie == "history":
        group[1].section.chain = 99
        scale, _ = decided(group, [one.contributions(1)[0] for one in group], 0)
        with pytest.raises(Refused, match="masks are still in it"):
            group[2].advance(scale)
        return
    scale, _ = decided(group, [one.contributions(1)[0] for one in group], 0)
    other = tuple(np.float32(1e6).tobytes() for _ in SHAPES)
    told = [scale, type(scale)(0, scale.contributors, scale.digests, other, (4, 4), 1), scale]
    result, _ = decided(group, [one.advance(said) for one, said in zip(group, told, strict=True)], 1)
    with pytest.raises(Refused, match="masks are still in it"):
        group[0].check(1, {0: scale, 1: result}, {})


def test_moments_stay_at_their_node():
    for secure, kept in ((False, True), (True, False)):
        hub = hub_of(job_of("delta", secure), THREE.nodes)
        hub.begin(THREE, THREE.nodes, checkpoint=0)
        hub.finish(THREE.nodes)
        payload, _ = hub.shards[STEPS, "stage-0.safetensors"]
        assert (b"optimizer." in payload) == kept
        held = hub.trainers["a"].state.named()
        assert all(any(prefix for prefix in vectors) == kept for vectors in held.values())


def test_two_members_hide_nothing_from_each_other():
    two = Plan(pipelines=(("a",), ("b",)), stages=((0, 2),), microbatches=(3, 1))
    hub = hub_of(job_of("delta", True), two.nodes)
    with pytest.raises(Exception):  # noqa: B017
        hub.begin(two, two.nodes, checkpoint=0)
    assert hub.errors and all("it takes 3" in str(error) for error in hub.errors.values())
