"""Mixing with neighbours: members come together at their weighted average, with a codec too, and end alike."""

import math
import random
import struct
import zlib

import numpy as np
import pytest
import torch
from header_bodies import body_of
from hypothesis import given, settings
from hypothesis import strategies as st
from windows import Windows, facts_of, wait_until

from farflung import compress
from farflung.job.schema import Job
from farflung.node.rounds.protocol.payloads import Refused
from farflung.node.state.sections.moments import Kept
from farflung.node.state.sections.section import Layout, Section
from farflung.node.training.modes.gossip_mode import MOST_GIVEN
from farflung.node.training.modes.mixing import Mixing, contraction, neighbours_of
from farflung.node.wire.events import Received
from farflung.proto import data_pb2
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

NUMEL = 64
CODECS = ["none", "int4", "topk:ratio=0.25", "cocktail:random=0.5,top=0.5,bits=4"]


class Ring:
    """Members that a test lets send and mix; each is given other weights to begin with."""

    def __init__(self, weights, codec, waits):
        self.names, self.weights = tuple("abcdef"[: len(weights)]), weights
        self.mixings = {}
        for index, name in enumerate(self.names):
            section = Section(Layout.of("stage-0", {"w": (NUMEL,)}), False, Kept(), torch.device("cpu"))
            section.x.copy_(torch.randn(NUMEL, generator=torch.Generator().manual_seed(index)))
            near = neighbours_of(self.names, weights, name)
            self.mixings[name] = Mixing(section, near, self.names, name, codec, seed=7, waits=waits)

    def send(self, name):
        mixing = self.mixings[name]
        sent = mixing.difference()
        for to in mixing.near:
            self.mixings[to].receive(name, mixing.epoch, mixing.number, sent)

    def mean(self):
        total = sum(w * self.mixings[n].section.x.double() for n, w in zip(self.names, self.weights, strict=True))
        return total / math.fsum(self.weights)

    def distance(self):
        mean = self.mean()
        return max(float((one.section.x - mean).norm()) for one in self.mixings.values())


@settings(max_examples=20)
@given(
    st.lists(st.sampled_from([0.2, 0.25, 0.5, 1.0]), min_size=2, max_size=5),
    st.sampled_from(CODECS),
    st.integers(0, 2**32),
)
def test_mixing_in_any_order_keeps_the_average_and_brings_members_to_it(weights, codec, seed):
    chance, ring = random.Random(seed), Ring(weights, codec, waits=True)
    before, mean = ring.distance(), ring.mean()
    for _ in range(12):
        assert not any(one.ready() for one in ring.mixings.values())
        unsent, unmixed = list(ring.names), set(ring.names)
        chance.shuffle(unsent)
        while unmixed:
            able = [name for name in sorted(unmixed - set(unsent)) if ring.mixings[name].ready()]
            if not unsent or (able and chance.random() < 0.5):
                name = chance.choice(able)
                ring.mixings[name].mix()
                unmixed.remove(name)
            else:
                ring.send(unsent.pop())
        torch.testing.assert_close(ring.mean(), mean, rtol=0, atol=1e-5)
        for one in ring.mixings.values():  # both ends of a link know the same
            assert all(torch.equal(known, ring.mixings[name].public) for name, known in one.known.items())
    assert ring.distance() < 0.7 * before


@pytest.mark.parametrize("codec", CODECS)
def test_without_a_barrier_members_come_together_whoever_is_slow_and_a_silent_one_is_passed_over(codec):
    chance, ring = random.Random(3), Ring([1.0] * 4, codec, waits=False)
    start = {name: one.section.x.clone() for name, one in ring.mixings.items()}
    for _ in range(120):
        name = chance.choice("aabbc")  # c is slow, d sends nothing
        ring.send(name)
        assert ring.mixings[name].ready()
        ring.mixings[name].mix()
    x = {name: one.section.x for name, one in ring.mixings.items()}
    assert torch.equal(x["d"], start["d"])
    apart = (start["a"] - start["b"]).norm()
    assert max(float((x[one] - x[two]).norm()) for one, two in ("ab", "bc")) < 0.3 * float(apart)
    assert all(float(values.norm()) < 2 * math.sqrt(NUMEL) for values in x.values())


def test_the_better_a_codec_the_bolder_the_mixing():
    paces = [contraction(codec) for codec in ("none", "int8", "int4", "topk:ratio=0.25", "topk:ratio=0.01")]
    assert paces[0] == 1.0 and paces[1] > 0.99 and paces == sorted(paces, reverse=True) and paces[-1] < 0.2


def test_neighbours_are_those_on_the_ring_and_shares_decide_how_far_one_goes():
    assert neighbours_of("ab", (1.0, 1.0), "a") == {"b": 0.5}
    assert neighbours_of("abcd", (0.25,) * 4, "a") == pytest.approx({"d": 1 / 3, "b": 1 / 3})
    assert neighbours_of("abc", (0.5, 0.25, 0.25), "a") == pytest.approx({"c": 1 / 6, "b": 1 / 6})
    assert neighbours_of("abc", (0.5, 0.25, 0.25), "b") == pytest.approx({"a": 1 / 3, "c": 1 / 3})


def test_nonsense_is_refused_and_its_sender_not_followed_until_the_next_average():
    ring = Ring([1.0] * 3, "none", waits=True)
    a, sent = ring.mixings["a"], ring.mixings["b"].difference()
    with pytest.raises(Refused, match="no neighbour"):
        a.receive("z", 0, 1, sent)
    a.receive("b", 0, 1, sent)
    with pytest.raises(Refused, match="difference 3 after average 0 does not follow 1 after 0"):
        a.receive("b", 0, 3, sent)
    ring.send("c")
    before = a.section.x.clone()
    assert a.ready()
    a.mix()
    torch.testing.assert_close(a.section.x, before + (a.known["c"] - a.public) / 3)
    for one in ring.mixings.values():
        one.section.round = 1
        one.reset()
    bad = type(sent)((sent.payload[0][:-4],), (sent.sizes[0] - 4,), 0)
    a.receive("b", 1, 1, bad)
    ring.send("c")
    a.mix()
    assert [(one.member, "makes no sense" in one.why) for one in a.complaints] == [("b", True)]


def test_what_was_sent_before_an_average_is_not_counted_after_it():
    ring = Ring([1.0, 1.0], "none", waits=True)
    a, b = ring.mixings["a"], ring.mixings["b"]
    ring.send("b")
    b.section.round = 1
    b.reset()  # b has applied the average that a is yet to apply
    ring.send("b")
    a.section.round = 1
    a.reset()
    assert a.ready()
    a.mix()
    assert torch.equal(a.known["b"], b.public)


STEPS = 16


def job_of(pattern, **updates):
    return Job.model_validate(
        {
            "run": {"name": "unagreed", "seed": 5, "steps": STEPS},
            "model": {"family": "gpt2", "layers": 2, "width": 16, "heads": 2, "context": 8, "tie": False},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 8, "microbatch": 2, "learning_rate": 1e-2, "eval_every": STEPS // 2},
            "updates": {"mode": "delta", "agreed": False, "pattern": pattern, **updates},
            "checkpoint": {"every": 0},
        }
    )


def plan_of(names):
    return Plan(tuple((name,) for name in names), ((0, 3),), (2, 1, 1) if len(names) == 3 else (1,) * len(names))


def begin(job, names):
    facts = facts_of(samples=60, validation=10, context=8, vocabulary=17, steps=STEPS)
    hub, data = Hub(job, facts), Windows(facts)
    for name in names:
        hub.start(name, data)
    return hub, data


def check_end(hub, outcome, names):
    assert not hub.errors and not outcome.warnings
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    x = [hub.trainers[name].state.sections["stage-0"] for name in names]
    assert all(torch.equal(one.x, x[0].x) and torch.equal(one.x, one.g) for one in x)
    assert outcome.evals[STEPS] < outcome.losses[1] - 0.3
    assert outcome.losses[STEPS] < outcome.losses[1] - 0.3


@pytest.mark.parametrize(
    ("pattern", "updates"),
    [("gossip", {}), ("gossip", {"codec": "int4", "overlap": 1}), ("async", {"codec": "int8", "every": 2})],
)
def test_training_without_agreement_learns_and_ends_with_equal_weights(pattern, updates):
    job, names = job_of(pattern, **updates), "abcd"
    hub, _ = begin(job, names)
    hub.begin(plan_of(names), names, checkpoint=0)
    outcome = hub.finish(names)
    check_end(hub, outcome, names)
    assert hub.bytes[data_pb2.DIFFERENCE] > 0
    assert outcome.evals[STEPS] < outcome.evals[STEPS // 2] < outcome.losses[1]
    assert outcome.evals[STEPS] < outcome.losses[1] - 0.3
    assert outcome.evals[STEPS] < outcome.losses[1] - 0.3
    assert outcome.evals[STEPS] < outcome.losses[1] - 0.3


@pytest.mark.parametrize("pattern", ["gossip", "async"])
def test_a_node_dies_and_another_joins_with_a_neighbours_weights(pattern):
    job = job_of(pattern)
    hub, data = begin(job, "abc")
    taken = {}

    def look(sender, to, header, payload):
        if header.kind == data_pb2.WEIGHTS:
            taken[to] = sender
        if sender == "c" and header.kind == data_pb2.DIFFERENCE and body_of(header).number == 5:
            hub.kill("c")
        return None if sender in hub.dead else payload

    hub.tamper = look
    hub.begin(plan_of("abc"), "abc", checkpoint=0)
    wait_until(lambda: "c" in hub.dead and min(hub.trainers[name].step for name in "ab") >= 4)
    hub.start("d", data)
    hub.change(plan_of("abd"), "ab", "d")
    outcome = hub.finish("abd")
    assert taken["d"] in "ab"
    check_end(hub, outcome, "abd")


@pytest.mark.parametrize("lie", ["not a number", "too long by far", "cut short"])
def test_nonsense_instead_of_weights_is_refused_and_another_member_asked(lie):
    """Weights that nobody asked for do not count either."""
    job, answers = job_of("gossip"), []
    hub, data = begin(job, "abc")

    def tamper(sender, to, header, payload):
        if header.kind == data_pb2.WEIGHTS_REQUEST and to == "c":
            hub.wires[sender].events.put(Received("a", stray(header), np.zeros(0, dtype=np.uint8)))
        if header.kind == data_pb2.WEIGHTS:
            answers.append(sender)
            if len(answers) == 1:
                values = compress.decode(payload.tobytes()).add(1.0) * (1e9 if lie == "too long by far" else 1.0)
                blob = bytearray(compress.make("none").encode(values))
                if lie == "not a number":
                    blob[-4:] = struct.pack("<f", math.nan)
                    blob[4:8] = struct.pack("<I", zlib.crc32(blob[8:], zlib.crc32(blob[:4])))
                if lie == "cut short":
                    del blob[-4:]
                body_of(header).sizes[:] = [len(blob)]
                return np.frombuffer(bytes(blob), dtype=np.uint8)
        return payload

    hub.tamper = tamper
    hub.begin(plan_of("abc"), "abc", checkpoint=0)
    wait_until(lambda: min(hub.trainers[name].step for name in "abc") >= 4)
    hub.start("d", data)
    hub.change(plan_of("abcd"), "abc", "d")
    outcome = hub.finish("abcd")
    assert not hub.errors and len(answers) == 2 and answers[0] != answers[1]
    why = f"{answers[0]}: a WEIGHTS that makes no sense"
    assert outcome.warnings and all(one.startswith(why) for one in outcome.warnings)
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())


def stray(header):
    """Weights of a member that was not asked."""
    return data_pb2.Header(
        kind=data_pb2.WEIGHTS, mixing=data_pb2.Mixing(section=body_of(header).section), view=header.view
    )


def test_whole_weights_are_given_to_a_member_a_few_times_only():
    hub, _ = begin(job_of("gossip"), "abc")
    sent, asked = [], []

    def tamper(sender, to, header, payload):
        if sender == "c" and header.kind == data_pb2.DIFFERENCE and body_of(header).number == 3 and not asked:
            asked.append(to)
            for _ in range(MOST_GIVEN + 2):
                one = data_pb2.Header(
                    kind=data_pb2.WEIGHTS_REQUEST, mixing=data_pb2.Mixing(section="stage-0"), view=header.view
                )
                hub.wires[to].events.put(Received("c", one, np.zeros(0, dtype=np.uint8)))
        if header.kind == data_pb2.WEIGHTS:
            sent.append(to)
        return payload

    hub.tamper = tamper
    hub.begin(plan_of("abc"), "abc", checkpoint=0)
    outcome = hub.finish("abc")
    assert sent == ["c"] * MOST_GIVEN and not hub.errors
    assert len(outcome.warnings) == 2 and all("c: it wants the weights" in one for one in outcome.warnings)
