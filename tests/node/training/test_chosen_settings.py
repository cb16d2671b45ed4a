"""Nodes take what the plan of each view chose of the job, and another choice with the next view."""

from dataclasses import replace

import pytest
from windows import Windows, facts_of, wait_until

from farflung.job.schema import Job
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

pytestmark = pytest.mark.usefixtures("nobody_late")

STEPS = 12
REST = {"eval_every": 0}
PLAN = Plan(pipelines=(("a", "b"), ("c", "d")), stages=((0, 1), (2, 3)), microbatches=(3, 3))


def job_of(every, recompute, microbatch=2, **updates):
    return Job.model_validate(
        {
            "run": {"name": "chosen", "seed": 5, "steps": STEPS},
            "model": {"family": "gpt2", "layers": 2, "width": 16, "heads": 2, "context": 8},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 12, "learning_rate": 3e-3, "microbatch": microbatch, "recompute": recompute, **REST},
            "updates": {"mode": "delta", "block": 256, "every": every, "codec": "int8", **updates},
            "checkpoint": {"every": 0},
        }
    )


def trained(job, plan, then=None):
    facts = facts_of(samples=60, validation=10, context=8, vocabulary=17, steps=STEPS)
    data, hub = Windows(facts), Hub(job, facts)
    for name in plan.nodes:
        hub.start(name, data)
    hub.begin(plan, plan.nodes, checkpoint=0)
    if then is not None:
        wait_until(lambda: hub.errors or hub.trainers["a"].step >= 3)
        hub.change(then, list(plan.nodes))
    outcome = hub.finish(plan.nodes)
    assert not hub.errors
    return hub, outcome


def test_a_choice_is_worth_the_same_as_the_job_s_own_words():
    _, fixed = trained(job_of(4, True), PLAN)
    hub, chosen = trained(job_of("auto", "auto"), replace(PLAN, chosen={"updates.every": 4, "train.recompute": True}))
    assert chosen.losses == fixed.losses and chosen.fingerprints == fixed.fingerprints
    assert all(model.recompute for trainer in hub.trainers.values() for model in trainer.state.models)


def test_the_next_view_may_choose_otherwise():
    first = replace(PLAN, chosen={"updates.every": 1, "train.recompute": True})
    hub, outcome = trained(
        job_of("auto", "auto"), first, replace(first, chosen={"updates.every": 5, "train.recompute": False})
    )
    assert sorted(outcome.losses) == list(range(1, STEPS + 1)) and outcome.losses[STEPS] < outcome.losses[1]
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values()), "all hold the same weights"
    assert not any(model.recompute for trainer in hub.trainers.values() for model in trainer.state.models)
    assert {trainer.context.job.updates.every for trainer in hub.trainers.values()} == {5}


def test_microbatches_are_those_of_the_view_s_plan_and_every_sample_counts_once():
    exact = {"mode": "gradient", "codec": "none"}  # a step is whole or not at all: each has the samples it always has
    fixed = trained(job_of(1, False, **exact), PLAN)[1]
    first = replace(PLAN, chosen={"train.microbatch": 2})
    larger = replace(PLAN, microbatches=(1, 1), chosen={"train.microbatch": 6})
    hub, outcome = trained(job_of(1, False, "auto", **exact), first, larger)
    assert sorted(outcome.losses) == list(range(1, STEPS + 1))
    assert outcome.losses == pytest.approx(fixed.losses, rel=1e-3), "summed in another order"
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    assert {trainer.training.size for trainer in hub.trainers.values()} == {6}
