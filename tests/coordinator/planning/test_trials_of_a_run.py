"""Trials of a real coordinator's view: what nodes report decides, is shown, stored and replayed."""

import asyncio
from contextlib import closing
from dataclasses import replace

import pytest
from membership_script import planner

from farflung.coordinator.observe.status import read_status
from farflung.coordinator.replay.replay import replay
from farflung.coordinator.store.store import Store
from farflung.job.chosen import with_chosen
from farflung.proto import control_pb2 as pb
from farflung.scheduler import Plan
from farflung.scheduler.trials import Trial, Tuning

TUNING = Tuning((Trial(2), Trial(1), Trial(4)))
STEPS = 2 * TUNING.steps + 12


def tries(names, current, broken):
    made = replace(planner(names, current, broken), chosen={"train.microbatch": 2})
    return replace(made, tuning=TUNING if current is None else current.tuning)


@pytest.fixture
def tried(fake_node):
    class Tried(fake_node):
        """Takes ``took[microbatch]`` seconds a step, as it says, and has too little memory for ``lacks``."""

        took, lacks, failed = {2: 0.4, 1: 0.5, 4: 0.1}, 0, 0

        async def _obey(self, order):
            await super()._obey(order)
            if order.WhichOneof("kind") == "view":
                self.job = with_chosen(self.job, self.plan.chosen)

        async def say(self, **report):
            if (done := report.get("step")) is not None:
                at = self.plan.tuning.at(done.step - self.view.step) if self.plan.tuning else None
                size = self.plan.tuning.trials[at].microbatch if at is not None else self.job.train.microbatch
                if size == self.lacks:
                    self.failed += 1
                    failed = pb.TrialFailed(view=done.view, step=done.step, why="has too little memory for it")
                    await super().say(trial_failed=failed)
                    await asyncio.Event().wait()  # until the view ends
                done.seconds = self.took[size]
            await super().say(**report)

    return Tried


def job_of(cluster, steps=STEPS):
    return cluster.job(("microbatch = 2", 'microbatch = "auto"'), ("steps = 12", f"steps = {steps}"))


async def test_a_trial_fails_and_another_is_the_fastest(cluster, tried):
    coordinator = cluster.coordinator(job_of(cluster), planner=tries)
    link = await coordinator.link
    nodes = [await cluster.node(link, name, kind=tried) for name in "abcd"]
    nodes[1].lacks = 4
    nodes[2].took = {2: 0.4, 1: 0.3, 4: 0.1}
    for node in (nodes[0], nodes[1], nodes[3]):
        node.took = {2: 0.2, 1: 0.2, 4: 0.1}
    assert await asyncio.wait_for(coordinator.task, 120) == 0
    views = [one for one in coordinator.events if one["event"] == "view"]
    assert [one["chosen"]["train.microbatch"] for one in views[:3]] == [2, 2, 1] and nodes[1].failed == 1
    assert "microbatch 4 is given up: b has too little memory for it" in views[1]["why"]
    assert "measured: a step takes 0.3 s with microbatch 1, 0.4 s with microbatch 2; microbatch 4 is" in views[2]["why"]
    assert views[2]["pipelines"] == views[0]["pipelines"]
    assert views[2]["microbatches"] == [2 * count for count in views[0]["microbatches"]]
    assert (await coordinator.event("done"))["steps"] == STEPS
    assert replay(coordinator.state).transitions >= 6


async def test_the_choice_in_force_stays_and_is_stored(cluster, tried):
    coordinator = cluster.coordinator(job_of(cluster), planner=tries)
    link = await coordinator.link
    nodes = [await cluster.node(link, name, kind=tried) for name in "abcd"]
    for node in nodes:
        node.took = {2: 0.3, 1: 0.4, 4: 0.3}
    assert await asyncio.wait_for(coordinator.task, 120) == 0
    (said,) = (one for one in coordinator.events if one.get("message", "").startswith("measured: "))
    assert said["message"] == (
        "measured: a step takes 0.3 s with microbatch 2, 0.4 s with microbatch 1, 0.3 s with microbatch 4"
    )
    assert said["message"] in read_status(coordinator.state)["view"]["why"]
    assert len([one for one in coordinator.events if one["event"] == "view"]) == 1
    with closing(Store(coordinator.state)) as store:
        plan = Plan.from_json(store.views.last().plan)
    assert plan.tuning.measured and not plan.tuning.trials and plan.chosen == {"train.microbatch": 2}


async def test_a_run_that_ends_with_its_trials_has_one_view(cluster, tried):
    coordinator = cluster.coordinator(job_of(cluster, TUNING.steps + 4), planner=tries)
    link = await coordinator.link
    for node in [await cluster.node(link, name, kind=tried) for name in "abcd"]:
        node.took = {2: 0.4, 1: 0.5, 4: 0.35}
    assert await asyncio.wait_for(coordinator.task, 120) == 0
    assert len([one for one in coordinator.events if one["event"] == "view"]) == 1
    (said,) = (one for one in coordinator.events if one.get("message", "").startswith("measured: "))
    assert said["message"].endswith("would not make up for a view change")
    with closing(Store(coordinator.state)) as store:
        plan = Plan.from_json(store.views.last().plan)
    assert plan.tuning == TUNING and plan.chosen == {"train.microbatch": 2}
