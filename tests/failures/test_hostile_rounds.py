"""Members that lie in rounds: what they send is refused and counted, and nothing of it reaches anybody's weights."""

import math
import struct
import threading
import zlib

import numpy as np
import pytest
import torch
from certificates import identities
from header_bodies import body_of
from windows import Windows, facts_of, wait_until

from farflung import compress
from farflung.coordinator.membership.faults.refusals import (
    ENOUGH,
    ONE_WORD,
    WORD_AGAINST_WORD,
    Circle,
    Refusals,
    circle_of,
)
from farflung.job.schema import Job
from farflung.node.rounds.arithmetic.outliers import FACTOR, GRADIENT_FACTOR, Norms
from farflung.node.rounds.checking import spoilers
from farflung.node.rounds.checking.receipts import said_in
from farflung.node.rounds.checking.signed import Signer
from farflung.node.rounds.protocol.headers import received_result
from farflung.node.rounds.protocol.payloads import received
from farflung.node.wire.events import Received
from farflung.proto import data_pb2
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

STEPS = 12
NAMES = ("a", "b", "c", "d")
PLAN = Plan(pipelines=tuple((name,) for name in NAMES), stages=((0, 3),), microbatches=(2, 2, 1, 1))
PIPES = Plan(pipelines=(("a", "b"), ("c", "d")), stages=((0, 1), (2, 3)), microbatches=(3, 3))


def job_of(mode, **updates):
    return Job.model_validate(
        {
            "run": {"name": "hostile", "seed": 5, "steps": STEPS},
            "model": {"family": "gpt2", "layers": 2, "width": 16, "heads": 2, "context": 8, "tie": False},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 12, "microbatch": 2, "learning_rate": 3e-3, "eval_every": 0},
            "updates": {"mode": mode, "block": 256, "codec": "none", "dense_rounds": 0, **updates},
            "checkpoint": {"every": 0},
        }
    )


def start(job, tamper, plan=PLAN, made=None):
    facts = facts_of(samples=60, validation=10, context=8, vocabulary=17, steps=STEPS)
    hub = Hub(job, facts)
    hub.tamper = lambda *message: tamper(hub, *message)
    data = Windows(facts)
    hub.identities = made or {}
    for name in plan.nodes:
        hub.start(name, data)
    hub.begin(plan, plan.nodes, checkpoint=0)
    return hub


def nan(values):
    return torch.full_like(values, math.nan)


LIES = {
    "not finite": (nan, "not finite"),
    "too long by far": (lambda values: values.add(1.0) * 1e6, "absurd norm"),
    "the wrong shape": (lambda values: torch.ones(values.numel() + 8), "do not decode"),
}


def encoded(values):
    """What codec none writes, also of numbers that it would not take."""
    blob = bytearray(compress.make("none").encode(torch.ones_like(values)))
    blob[-4 * values.numel() :] = values.numpy().tobytes()
    blob[4:8] = struct.pack("<I", zlib.crc32(blob[8:], zlib.crc32(blob[:4])))
    return blob


def rewritten(header, data, change):
    """The message's one piece with other values in it."""
    values = compress.decode(data.tobytes())
    blob = encoded(change(values))
    del body_of(header).sizes[:]
    body_of(header).sizes.append(len(blob))
    return np.frombuffer(bytes(blob), dtype=np.uint8)


def spoilt_by(who):
    """A tamper: in most steps, a member says that its gradient is not finite."""

    def tamper(hub, sender, to, header, data):
        if sender == who and header.kind == data_pb2.CONTRIBUTION and 3 <= body_of(header).round < STEPS:
            del body_of(header).sizes[:]
            return data[:0]
        return data

    return tamper


def assert_sound(hub, names):
    for name in names:
        for section in hub.trainers[name].state.sections.values():
            for vector in (section.g, section.x, section.feedback):
                assert vector is None or bool(torch.isfinite(vector).all())
                assert vector is None or float(vector.abs().max()) < 100


@pytest.mark.parametrize("pattern", ["publishers", "all_to_all"])
@pytest.mark.parametrize("lie", LIES)
def test_a_lying_contribution_is_left_out_and_its_sender_named(pattern, lie):
    change, why = LIES[lie]

    def tamper(hub, sender, to, header, data):
        if sender == "d" and header.kind == data_pb2.CONTRIBUTION and body_of(header).round % 3 == 0:
            return rewritten(header, data, change)
        return data

    hub = start(job_of("delta", pattern=pattern), tamper)
    outcome = hub.finish(NAMES)
    assert not hub.errors
    assert any(warning.startswith("d: ") and why in warning for warning in outcome.warnings), outcome.warnings
    assert all(warning.startswith("d: ") for warning in outcome.warnings)
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    assert outcome.losses[STEPS] < outcome.losses[1]
    assert_sound(hub, NAMES)


def test_a_lie_in_gradient_mode_costs_the_step_and_nothing_else():
    def tamper(hub, sender, to, header, data):
        if sender == "d" and header.kind == data_pb2.CONTRIBUTION and body_of(header).round == 4:
            return rewritten(header, data, nan)
        return data

    hub = start(job_of("gradient", pattern="publishers"), tamper)
    outcome = hub.finish(NAMES)
    assert not hub.errors
    assert any("d: update refused" in warning for warning in outcome.warnings)
    assert any("step 4 had a gradient that is not finite, or was refused" in one for one in outcome.warnings)
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    assert_sound(hub, NAMES)


def test_who_says_in_every_step_that_its_gradient_is_not_finite_is_named_and_put_out(monkeypatch):
    monkeypatch.setattr(spoilers, "PATIENCE", 4)

    hub = start(job_of("gradient", pattern="publishers"), spoilt_by("d"))
    wait_until(lambda: verdicts(hub))
    assert verdicts(hub)[0].out == "d", verdicts(hub)
    outcome = hub.finish(NAMES)
    assert not hub.errors
    named = [one for one in outcome.warnings if "is not finite, as in" in one]
    assert named and all(one.startswith("d: update refused: its gradient is not finite, as in") for one in named)
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    assert_sound(hub, NAMES)


def test_a_pipeline_that_says_so_in_every_step_is_named_and_none_of_its_nodes_is_out(monkeypatch):
    """c's gradient came through d, which may have spoilt it."""
    monkeypatch.setattr(spoilers, "PATIENCE", 4)

    hub = start(job_of("gradient", pattern="publishers"), spoilt_by("c"), plan=PIPES)
    outcome = hub.finish(NAMES)
    assert not hub.errors
    named = [one for one in outcome.warnings if "spoils steps" in one]
    assert len(named) == 1 and named[0].startswith("c: the pipeline c > d spoils steps (one of c and d,")
    assert not any("update refused" in one for one in outcome.warnings)
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    assert_sound(hub, NAMES)


@pytest.mark.parametrize("mode", ["delta", "gradient"])
@pytest.mark.parametrize("lie", ["not finite", "the wrong shape", "too long by far"])
def test_a_lying_publisher_stops_the_round_until_it_is_out(mode, lie):
    """Its result is applied by nobody; with the next view, which it is not in, the others go on."""
    change, why = LIES[lie]

    def tamper(hub, sender, to, header, data):
        if sender == "d" and header.kind == data_pb2.RESULT and body_of(header).round >= 7:
            return rewritten(header, data, change)
        return data

    # No audits: one is drawn now and then, and names d for the same lie in its own words.
    hub = start(job_of(mode, pattern="publishers", audit=0.0), tamper)
    wait_until(lambda: any("cannot be applied" in text for _, text in said(hub)))
    assert all(why in text for node, text in said(hub) if node == "d"), said(hub)
    rest = ["a", "b", "c"]
    hub.change(Plan(pipelines=(("a",), ("b",), ("c",)), stages=((0, 3),), microbatches=(2, 2, 2)), rest)
    outcome = hub.finish(rest)
    assert not {name for name in hub.errors if name != "d"}
    assert outcome.losses[STEPS] < outcome.losses[1]
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    assert_sound(hub, rest)


@pytest.mark.parametrize("mode", ["delta", "gradient"])
def test_who_contributes_one_thing_to_the_publisher_and_another_to_the_rest_is_named_by_all(mode):
    """And the round goes on, with what the publisher counted: nobody waits, and every weight has the same bits.
    Who gets the other contribution after the round has nothing to compare: so the result leaves after both."""
    made, lied_to, told = identities(NAMES), set(), threading.Event()

    def tamper(hub, sender, to, header, data):
        if sender == "d" and to in ("b", "c") and header.kind == data_pb2.CONTRIBUTION and body_of(header).round == 4:
            changed = rewritten(header, data, lambda values: -values)
            signer, sent = Signer(made["d"], header.view, {"d": "d"}), received(changed.data, body_of(header).sizes)
            body_of(header).signature = signer.signed(
                "d", body_of(header).section, body_of(header).round, body_of(header).part, sent
            ).signature
            hub.wires[to].events.put(Received("d", header, changed))
            lied_to.add(to)
            if lied_to == {"b", "c"}:
                told.set()
            return changed
        if sender == "a" and header.kind == data_pb2.RESULT and body_of(header).round == 4:
            told.wait(60)
        return data

    hub = start(job_of(mode, pattern="all_to_all"), tamper, made=made)
    outcome = hub.finish(NAMES)
    assert not hub.errors
    assert len(outcome.warnings) == 3 and all(one.startswith("d: it signed two") for one in outcome.warnings)
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    assert outcome.losses[STEPS] < outcome.losses[1]


@pytest.mark.parametrize("mode,pattern", [("delta", "publishers"), ("gradient", "publishers"), ("delta", "all_to_all")])
def test_who_publishes_one_result_to_some_and_another_to_others_is_named_by_all_and_the_rest_go_on(mode, pattern):
    """Its victim alone holds another history: with the liar out, the victim begins anew from the others."""
    made, liar = identities(NAMES), "a" if pattern == "all_to_all" else "d"
    rest = [name for name in NAMES if name != liar]

    def tamper(hub, sender, to, header, data):
        if (sender, to) == (liar, "b") and header.kind == data_pb2.RESULT and body_of(header).round == 4:
            body_of(header).error ^= 1
            said = said_in(received_result(header.result, data.data))
            signer = Signer(made[liar], header.view, {liar: liar})
            body_of(header).signature = signer.attestation(
                liar, body_of(header).section, body_of(header).round, body_of(header).part, said
            )
        return data

    hub = start(job_of(mode, pattern=pattern), tamper, made=made)
    wait_until(lambda: len([1 for _, text in said(hub) if "it signed two different results" in text]) == 3)
    assert {node for node, _ in said(hub)} == {liar}
    hub.change(Plan(pipelines=tuple((name,) for name in rest), stages=((0, 3),), microbatches=(2, 2, 2)), rest)
    outcome = hub.finish(rest)
    assert not {name for name in hub.errors if name != liar}
    assert outcome.losses[STEPS] < outcome.losses[1]
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())


def said(hub):
    """(node, message) of the refusals that have been reported and not read yet."""
    found = []
    for _, report in list(hub.reports.queue):
        if report.WhichOneof("kind") == "warning" and report.warning.refused:
            found.append((report.warning.node, report.warning.message))
    return found


def verdicts(hub):
    """What a coordinator decides by the refusals that have been reported and not read yet."""
    refusals, circles = Refusals(), {name: circle_of(PLAN, name, False, {}) for name in NAMES}
    found = []
    for by, report in list(hub.reports.queue):
        if report.WhichOneof("kind") == "warning" and report.warning.refused:
            of, points = report.warning.node, report.warning.refused
            found.append(refusals.count((by, "1"), (of, "1"), points, circles[of], circles[by]))
    return [verdict for verdict in found if verdict is not None]


@pytest.mark.usefixtures("nobody_late")
def test_replays_and_forgeries_change_nothing():
    """Old messages again, and a contribution of another's that nobody asked for: everybody's bits are those without."""
    outcomes = []
    for hostile in (False, True):
        kept = []

        def tamper(hub, sender, to, header, data, hostile=hostile, kept=kept):
            if hostile and sender == "d" and header.kind in (data_pb2.CONTRIBUTION, data_pb2.RESULT):
                kept.append((to, header, data))
                hub.wires[kept[len(kept) // 2][0]].events.put(Received("d", *kept[len(kept) // 2][1:]))
                forged = data_pb2.Header()
                forged.CopyFrom(header)
                if header.kind == data_pb2.CONTRIBUTION:
                    forged.contribution.of = 0  # as if a had sent it
                else:
                    forged.result.contributors[:] = [0]
                hub.wires[to].events.put(Received("d", forged, data))
            return data

        hub = start(job_of("delta", pattern="publishers"), tamper)
        outcomes.append(hub.finish(NAMES))
    clean, attacked = outcomes
    assert clean.losses == attacked.losses and clean.fingerprints == attacked.fingerprints
    assert any(one.startswith("d: ") for one in attacked.warnings) and not clean.warnings


def test_norms_are_held_against_the_median_of_now_and_of_late():
    norms = Norms()
    assert norms.absurd(0, {0: 1.0, 1: 2.0, 2: 3.0, 3: 2.0 * FACTOR + 1}, 0) == {3: 2.0 * FACTOR}
    assert norms.absurd(0, {0: 1e-9, 1: 2.0, 2: 1e-9}, 0) == {}, "it was as long a round ago"
    assert norms.absurd(1, {0: 0.0, 1: 0.0, 2: 5.0}, 0) == {}, "nothing to go by"
    assert norms.absurd(2, {0: 1e9, 1: 1.0, 2: 1.0}, 0) == {}, "never this node itself"
    assert norms.absurd(3, {}, 0) == {}


def test_who_has_the_one_sample_that_is_not_learnt_yet_is_no_liar():
    norms = Norms(GRADIENT_FACTOR)
    known_by_heart, new = 0.00708, 1.67  # gradients of an honest run, after its model had learnt nearly all samples
    assert norms.absurd(0, {0: known_by_heart, 1: known_by_heart / 2, 2: new}, 0) == {}
    local = Norms()
    local.absurd(0, {0: 5.0, 1: 0.01, 2: 0.01}, 0)
    assert local.absurd(0, {0: 0.01, 1: 0.01, 2: 2.0}, 0) == {}, "this node itself sent one that long"
    assert set(local.absurd(0, {0: 0.01, 1: 0.01, 2: 5.0 * FACTOR + 1}, 0)) == {2}


def test_results_are_held_against_those_before_and_what_this_node_sent():
    norms = Norms()
    assert [norms.absurd_result(0, value, 0.0) for value in (1.0, 1e6, 1.0, 1.0, 1.0)] == [0.0] * 5
    assert norms.absurd_result(0, 2e8, 0.0) == 1e6 * FACTOR
    assert norms.absurd_result(0, 2e8, 3e6) == 0.0, "everybody's numbers have grown"


A, B, C, D = ("a", "a1"), ("b", "b1"), ("c", "c1"), ("d", "d1")


def four(tickets=""):
    """What a group of a, b, c and d counts, each with its ticket; by default all with the same."""
    tickets = dict(zip("abcd", tickets or "1111", strict=True))

    class Group(Refusals):
        def count(self, by, accused, points):
            circles = [Circle(3, {n: t for n, t in tickets.items() if n != one[0]}) for one in (accused, by)]
            return super().count(by, accused, points, *circles)

    return Group()


def test_whose_word_counts_about_a_member():
    plan = Plan((("a", "b", "c"), ("d", "e", "f")), ((0, 0), (1, 1), (2, 2)), (1, 1), {"x": "spare", "y": "spare"})
    assert set(circle_of(plan, "b", False, {}).voices) == {"e", "a", "c"}
    assert set(circle_of(plan, "a", False, {}).voices) == {"d", "b"}
    assert set(circle_of(plan, "a", True, {}).voices) == {"d", "c", "f", "b"}
    refusals, nobody = Refusals(), circle_of(plan, "x", False, {})
    for liar in (("x", "x1"), ("y", "y1"), ("f", "f1")):
        for _ in range(2):
            assert refusals.count(liar, ("b", "b1"), 30, circle_of(plan, "b", False, {}), nobody) is None
    assert refusals.of(("b", "b1")) == 0, "spares and strangers to its places have received nothing of it"


def test_several_names_of_one_ticket_are_one_voice():
    """Unless they are most of a group: where everybody came by the same link, that is all that can be known."""
    voices = {name: "1" if name in "xy" else name for name in "abcdexy"}
    refusals, group = Refusals(), Circle(7, voices)
    for liar in "xy":
        verdict = refusals.count((liar, "1"), ("h", "h1"), 30, group, Circle(7, {**voices, "h": "h"}))
        assert not verdict or not verdict.out
    assert refusals.count(("a", "1"), ("h", "h1"), 5, group, group) is None
    assert refusals.count(("b", "1"), ("h", "h1"), 5, group, group).out == "h", "with the others' words it is evidence"
    same, everybody = Refusals(), Circle(7, dict.fromkeys("abcdexy", "1"))
    outs = [same.count((one, "1"), ("h", "h1"), 5, everybody, everybody) for one in "abcd"]
    assert outs[:3] == [None] * 3 and outs[3].out == "h"


@pytest.mark.parametrize("count", range(3, 13))
def test_a_third_of_the_others_that_lie_together_evict_nobody_and_are_out_before_they_have_hurt_as_many(count):
    """Whether they accuse the honest or send nonsense to one of them, who then stands alone against them."""
    names = [f"n{i}" for i in range(count + 1)]
    group = {one: Circle(count, {n: n for n in names if n != one}) for one in names}
    liars = names[: count // 3] if count >= 6 else names[:1]
    accused, sent = Refusals(), Refusals()
    for honest in names[len(liars) :]:
        for liar in liars:
            verdict = accused.count((liar, "1"), (honest, "1"), 10**9, group[honest], group[liar])
            assert verdict is None or verdict.out != honest
    victim = names[-1]
    verdicts = [sent.count((victim, "1"), (liar, "1"), 10**9, group[liar], group[victim]) for liar in liars]
    assert all(not one.out and one.apart for one in verdicts)
    for number, honest in enumerate(names[len(liars) :]):
        verdict = sent.count((honest, "1"), (liars[0], "1"), 5, group[liars[0]], group[honest])
        if verdict is not None and verdict.out:
            assert verdict.out == liars[0] and number <= count // 3 + 1
            break
    else:
        raise AssertionError("the honest together evict a liar")


def test_nobody_is_out_for_what_names_of_one_ticket_sent_to_it_alone():
    voices = dict.fromkeys("abcdehxy", "1")
    refusals, group = Refusals(), Circle(7, voices)
    for liar in "xy":
        verdict = refusals.count(("h", "1"), (liar, "1"), 30, group, group)
        assert not verdict.out and verdict.apart == ("h", liar)


def test_the_words_of_two_members_evict():
    refusals = four()
    assert not refusals.count(A, D, ENOUGH - 1)
    assert refusals.of(D) == ENOUGH - 1 and refusals.of(("d", "d2")) == 0
    assert not refusals.count(B, D, ONE_WORD - 1), "of one member's points only so many count"
    verdict = refusals.count(B, D, 1)
    assert verdict.out == "d" and "refused by a, b" in verdict.why and refusals.of(D) == 0


def test_one_member_alone_evicts_nobody_but_itself():
    """A liar's word against d parts the two; against c as well, and it is the liar that is out."""
    refusals = four()
    assert not any(refusals.count(A, D, 1) for _ in range(WORD_AGAINST_WORD - 1))
    verdict = refusals.count(A, D, 1)
    assert verdict.apart == ("a", "d") and not verdict.out
    again = ("a", "a2")
    assert not any(refusals.count(life, D, 10**9) for life in (A, A, again)), "it is one member in all its lives"
    verdict = refusals.count(again, C, 10**9)
    assert verdict.out == "a" and verdict.why == "it alone refuses what c and d send"


def test_a_liar_that_two_have_seen_is_out_whatever_it_says_of_them():
    refusals = four()
    assert refusals.count(D, A, 10**9).apart and refusals.count(A, D, 10**9).apart
    assert refusals.count(B, D, 10**9).out == "d"


def test_nonsense_from_a_neighbour_stops_the_step_until_it_is_out():
    """An activation of another shape, or a gradient that does not decode: the neighbour lives, and says who it was."""

    def cut(values):
        return values[:, :3]

    for kind, sender, victim in ((data_pb2.ACTIVATION, "c", "d"), (data_pb2.ACTIVATION_GRADIENT, "d", "c")):

        def tamper(hub, who, to, header, data, kind=kind, sender=sender):
            if who == sender and header.kind == kind and body_of(header).step == 4:
                blob = compress.make("none").encode(cut(compress.decode(data.tobytes())))
                body_of(header).sizes[:] = [len(blob)]
                return np.frombuffer(blob, dtype=np.uint8)
            return data

        hub = start(job_of("gradient"), tamper, PIPES)
        wait_until(lambda hub=hub: said(hub))
        assert [(node, "where" in text) for node, text in said(hub)] == [(sender, True)]
        hub.change(Plan(pipelines=(("a", "b"),), stages=((0, 1), (2, 3)), microbatches=(6,)), ["a", "b", victim])
        outcome = hub.finish(["a", "b"])
        assert victim not in hub.errors and outcome.losses[STEPS] < outcome.losses[1]
        assert_sound(hub, ["a", "b"])
