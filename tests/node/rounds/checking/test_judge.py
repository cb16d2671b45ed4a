"""Members and spares judge contributions by what they do to the loss (node/rounds/checking/judge.py)."""

import random
from statistics import mean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from liars import Liars, install
from windows import Windows, facts_of

from farflung.coordinator.membership.faults.judged import ENOUGH
from farflung.coordinator.membership.faults.judged import LIMIT as USELESS
from farflung.job.schema import Job
from farflung.node.rounds.checking.judge import LIMIT, MOST_MEMBERS, MOST_SAMPLES, alike, extent_of, scores
from farflung.proto import control_pb2
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

NAMES = ("a", "b", "c", "d", "e")
PLAN = Plan(pipelines=tuple((name,) for name in NAMES), stages=((0, 3),), microbatches=(2, 2, 2, 2, 2))
STEPS = 24


def job_of(**updates):
    return Job.model_validate(
        {
            "run": {"name": "judged", "seed": 5, "steps": STEPS},
            "model": {"family": "gpt2", "layers": 2, "width": 16, "heads": 2, "context": 8, "tie": False},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 20, "microbatch": 2, "learning_rate": 3e-3, "eval_every": 0},
            "updates": {"mode": "delta", "every": 2, "block": 256, "codec": "int8", "pattern": "all_to_all", **updates},
            "checkpoint": {"every": 0},
        }
    )


def train(job, spare=False, nodes=NAMES, plan=PLAN):
    """The outcome, and the scores by (judge, judged)."""
    facts = facts_of(samples=600, validation=10, context=8, vocabulary=17, steps=STEPS)
    hub, said = Hub(job, facts), {}
    data = Windows(facts)
    everybody = [*nodes, "s"] if spare else list(nodes)
    for name in everybody:
        hub.start(name, data)
    take = hub._next

    def listen():
        name, report = take()
        if report.WhichOneof("kind") == "scores":
            for one in report.scores.scores:
                said.setdefault((name, one.node), []).append((one.own, one.held))
        return name, report

    hub._next = listen
    shadows = [control_pb2.Shadow(node="s", like="a", fetch=True)] if spare else []
    hub.begin(plan, everybody, checkpoint=0, shadows=shadows)
    outcome = hub.finish(nodes)
    assert not hub.errors
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    return outcome, said


def test_copies_are_near_each_other_and_honest_members_are_not():
    chance = torch.Generator().manual_seed(1)
    common = torch.randn(4096, generator=chance) * 3  # what all have learnt alike
    sent = [common + torch.randn(4096, generator=chance) for _ in range(6)]
    sent += [sent[0] + 0.2 * torch.randn(4096, generator=chance), sent[0].clone()]
    rows = torch.stack(sent).double()
    same = alike(rows @ rows.T)
    assert same[0] == {6, 7} and same[6] == {0, 7} and same[7] == {0, 6}
    assert same[1:6] == [set()] * 5


def test_copies_of_a_contribution_hide_neither_that_it_is_true_nor_one_another():
    """Three of seven copy the first: who trained stands as in a round without copies, and the copies at nothing."""
    gains = [[0.1 + (0.5 if k == i or (i >= 4 and k == 0) else 0.0) for k in range(7)] for i in range(7)]
    same = [{4, 5, 6}, set(), set(), set(), {0, 5, 6}, {0, 4, 6}, {0, 4, 5}]
    for row in gains[4:]:
        row[4:] = [0.1] * 3  # they have not trained their samples
    plain, apart = scores(gains), scores(gains, same)
    assert plain[0][0] <= plain[1][0] / 2, "it stood beside its copies"
    assert [round(own, 6) for own, _ in apart] == [1, 1, 1, 1, 0, 0, 0]
    assert all(abs(held) < 1e-9 for _, held in apart)


@pytest.fixture(autouse=True)
def loaded_dice(monkeypatch):
    """Judges throw the same dice in every run: bounds of a mean are then no question of luck."""
    monkeypatch.setattr("farflung.node.rounds.checking.judge.random.SystemRandom", lambda: random.Random(3))


@pytest.mark.parametrize("kind", ["sign flip", "noise"])
def test_members_see_who_does_not_train(monkeypatch, kind):
    install(monkeypatch, Liars({"e": kind}))
    _, said = train(job_of(judge=1.0))
    of = {name: [own for (_, one), some in said.items() if one == name for own, _ in some] for name in NAMES}
    for name in "abcd":
        assert mean(of[name]) > USELESS, (name, of)  # judges throw dice: what the coordinator asks of a mean
        assert mean(of["e"]) < mean(of[name]) / 2
    assert not {(name, name) for name in NAMES} & set(said)


def test_who_trains_few_samples_of_a_step_is_judged_as_the_others_are():
    """A slow member's part of the mean is small, and so is what it moves; it is of as much use for that part."""
    shares = Plan(pipelines=PLAN.pipelines, stages=PLAN.stages, microbatches=(1, 4, 3, 1, 1))
    _, said = train(job_of(judge=1.0), plan=shares)
    slow = [own for (_, one), some in said.items() if one in "ade" for own, _ in some]
    assert mean(slow) > 0.25, said


def test_a_spare_judges_what_it_follows(monkeypatch):
    install(monkeypatch, Liars({"e": "sign flip"}))
    _, said = train(job_of(judge=1e-9), spare=True)
    assert {judge for judge, _ in said} == {"s"}
    flipped = said["s", "e"]
    assert len(flipped) >= 3 and mean(own for own, _ in flipped) < 0 and mean(held for _, held in flipped) < 0
    scores = {name: [own for own, _ in said.get(("s", name), [])] for name in "abcd"}
    honest = {name: mean(own) for name, own in scores.items() if len(own) >= ENOUGH}
    assert all(one > USELESS for one in honest.values()), honest


@pytest.mark.usefixtures("nobody_late")
def test_judging_changes_no_bit_of_the_training():
    plain, none = train(job_of())
    judged, said = train(job_of(judge=1.0))
    assert not none and said
    assert plain.fingerprints == judged.fingerprints and plain.losses == judged.losses


def test_where_nobody_can_judge_it_is_said():
    plan = Plan(pipelines=(("a", "b"), ("c", "d")), stages=((0, 1), (2, 3)), microbatches=(5, 5))
    outcome, said = train(job_of(judge=1.0), nodes=("a", "b", "c", "d"), plan=plan)
    assert not said
    said = "nobody judges contributions in view 1: the model is cut into 2 stages"
    assert any(said in one for one in outcome.warnings)


finite = st.floats(-1e6, 1e6)


@given(st.integers(0, 9).flatmap(lambda n: st.lists(st.lists(finite, min_size=n, max_size=n), min_size=n, max_size=n)))
def test_scores_are_one_pair_for_each_or_none(gains):
    found = scores(gains)
    assert len(found) in (0, len(gains))
    assert all(-LIMIT <= value <= LIMIT for pair in found for value in pair)


@given(st.integers(4, 8), st.floats(0.001, 10), st.data())
def test_who_lowers_the_loss_of_its_own_samples_most_has_about_one(count, gain, data):
    """Whatever all contributions have in common on a contributor's samples takes nothing from anybody."""
    common = data.draw(st.lists(st.floats(-100, 100), min_size=count, max_size=count))
    gains = [[common[k] + (gain if i == k else 0.0) for k in range(count)] for i in range(count)]
    for own, held in scores(gains):
        assert own == pytest.approx(1, abs=1e-3) and held == pytest.approx(0, abs=1e-3)


@given(st.integers(3, 200), st.floats(0, 1e7))
def test_what_is_judged_fits_into_the_budget(members, budget):
    found = extent_of(members, budget)
    assert 4 <= found.members <= MOST_MEMBERS and 1 <= found.samples <= MOST_SAMPLES
    assert found.cost <= max(budget, 20)
