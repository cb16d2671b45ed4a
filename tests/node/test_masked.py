"""Rounds with masks: nobody sees a member's levels, and the sum is the one without masks."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from windows import Windows, facts_of

from farflung.compress import CodecError
from farflung.compress.secure import Pairwise
from farflung.node.loopback import Hub
from farflung.proto import data_pb2
from farflung.proto.job import Job
from farflung.scheduler import Plan

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
def test_the_run_is_the_one_without_masks_and_what_travels_is_noise(mode):
    found, sent = {}, {False: [], True: []}
    for secure in (False, True):
        hub = hub_of(job_of(mode, secure), THREE.nodes)

        def tap(sender, to, header, data, kept=sent[secure]):
            if header.kind == data_pb2.CONTRIBUTION:
                kept.append((header.part, list(header.sizes), bytes(data)))
            return data

        hub.tamper = tap
        hub.begin(THREE, THREE.nodes, checkpoint=0)
        outcome = hub.finish(THREE.nodes)
        assert not hub.errors and not outcome.warnings
        assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
        found[secure] = hub.trainers["a"].state.sections["stage-0"].g
    torch.testing.assert_close(found[True], found[False], rtol=1e-5, atol=1e-6)
    assert len(sent[True]) == len(sent[False]) > 0
    parts = hub.trainers["a"].training.links["stage-0"].rounds.plan.parts
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


def test_two_members_hide_nothing_from_each_other():
    two = Plan(pipelines=(("a",), ("b",)), stages=((0, 2),), microbatches=(3, 1))
    hub = hub_of(job_of("delta", True), two.nodes)
    with pytest.raises(Exception):  # noqa: B017
        hub.begin(two, two.nodes, checkpoint=0)
    assert all("it takes 3" in str(error) for error in hub.errors.values())
