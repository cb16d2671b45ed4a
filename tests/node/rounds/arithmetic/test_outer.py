"""Outer optimisers of delta mode: the plain loop with torch's own SGD, one reference everywhere, nothing lost."""

import json
import time

import pytest
import torch
from plain_loop import plain_local_losses
from windows import Windows, facts_of, wait_until

from farflung.job.schema import Job
from farflung.job.tables.outer import Outer, parse_outer
from farflung.node.rounds.arithmetic import applier
from farflung.node.rounds.arithmetic.applier import outer_step
from farflung.node.training.modes import delta_mode
from farflung.proto import control_pb2
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

STEPS = 16
TWO_BY_TWO = Plan(pipelines=(("a", "b"), ("c", "d")), stages=((0, 1), (2, 3)), microbatches=(4, 2))
ONE = Plan(pipelines=(("a", "b"),), stages=((0, 1), (2, 3)), microbatches=(6,))
WHOLE = Plan(pipelines=(("a",),), stages=((0, 3),), microbatches=(6,))
NESTEROV = "nesterov:lr=0.7,momentum=0.9"


def job_of(outer: str, every: int = 4, overlap: int = 0, checkpoint: int = 0, tie: bool = True, **updates) -> Job:
    return Job.model_validate(
        {
            "run": {"name": "outer", "seed": 3, "steps": STEPS},
            "model": {"family": "gpt2", "layers": 2, "width": 16, "heads": 2, "context": 8, "tie": tie},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 12, "microbatch": 2, "learning_rate": 3e-3, "eval_every": 0},
            "updates": {"mode": "delta", "block": 256, "outer": outer, "every": every, "overlap": overlap, **updates},
            "checkpoint": {"every": checkpoint},
        }
    )


def start(job: Job, plan: Plan, artifacts=None, **view) -> tuple[Hub, Windows]:
    facts = facts_of(samples=90, validation=10, context=8, vocabulary=17, steps=STEPS)
    data = Windows(facts)
    hub = Hub(job, facts, artifacts)
    for name in plan.nodes:
        hub.start(name, data)
    hub.begin(plan, plan.nodes, **(view or {"checkpoint": 0}))
    return hub, data


@pytest.mark.parametrize(
    ("plan", "outer"),
    [(TWO_BY_TWO, NESTEROV), (TWO_BY_TWO, "sgd:lr=0.8,momentum=0.5"), (TWO_BY_TWO, "average"), (WHOLE, NESTEROV)],
)
@pytest.mark.usefixtures("nobody_late")
def test_equal_to_local_steps_and_torchs_sgd(plan, outer):
    job = job_of(outer, tie=False)
    hub, data = start(job, plan)
    outcome = hub.finish(plan.nodes)
    wanted = plain_local_losses(job, hub.facts, data, STEPS, plan.microbatches)
    assert [outcome.losses[step] for step in range(1, STEPS + 1)] == pytest.approx(wanted, abs=1e-4)
    assert wanted[-1] < wanted[0] - 0.05
    assert not hub.errors
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())


@pytest.mark.usefixtures("nobody_late")
def test_a_run_that_ends_between_two_rounds_ends_with_a_plain_average():
    plan = Plan(pipelines=(("a",), ("b",)), stages=((0, 3),), microbatches=(4, 2))
    job = job_of(NESTEROV, every=7, tie=False)
    hub, data = start(job, plan)
    outcome = hub.finish(plan.nodes)
    wanted = plain_local_losses(job, hub.facts, data, STEPS, plan.microbatches)
    assert [outcome.losses[step] for step in range(1, STEPS + 1)] == pytest.approx(wanted, abs=1e-4)
    one, other = (hub.trainers[name].state.sections["stage-0"] for name in "ab")
    torch.testing.assert_close(one.g, one.x, rtol=0, atol=1e-6)
    assert torch.equal(one.g, other.g)


@pytest.mark.usefixtures("nobody_late")
def test_a_round_in_flight_at_the_last_step_is_an_outer_step_like_any_other(monkeypatch):
    moved = []
    monkeypatch.setattr(
        applier, "outer_step", lambda outer, *more: (moved.append(outer.momentum), outer_step(outer, *more))[1]
    )
    plan = Plan(pipelines=(("a",), ("b",)), stages=((0, 3),), microbatches=(4, 2))
    hub, _ = start(job_of(NESTEROV, every=7, overlap=3, tie=False), plan)  # due after 7 and 14 of 16 steps
    outcome = hub.finish(plan.nodes)
    assert moved == [0.9] * 4  # what is left after them is averaged
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())


@pytest.mark.parametrize("fragments", [1, 2])
def test_the_last_rounds_wait_for_who_is_slow(monkeypatch, fragments):
    local_step = delta_mode.DeltaMode._local_step

    def slow(self, step, norm):
        local_step(self, step, norm)
        if self.view.context.name == "c" and step == STEPS:
            time.sleep(1.5)  # more than a deadline, where the machine has nothing else to do

    monkeypatch.setattr(delta_mode.DeltaMode, "_local_step", slow)
    plan = Plan(pipelines=(("a",), ("b",), ("c",)), stages=((0, 3),), microbatches=(2, 2, 2))
    hub, _ = start(job_of("average", every=2, fragments=fragments, tie=False), plan)
    hub.finish(plan.nodes)
    section = hub.trainers["c"].state.sections["stage-0"]
    torch.testing.assert_close(section.x, section.g, rtol=0, atol=1e-6)


@pytest.mark.usefixtures("nobody_late")
@pytest.mark.parametrize("outer", [NESTEROV, "average"])
def test_fragments_are_rounds_of_parts_of_the_vector(outer):
    plan = Plan(pipelines=(("a",), ("b",), ("c",)), stages=((0, 3),), microbatches=(3, 2, 1))
    job = job_of(outer, every=6, tie=False, fragments=3)
    hub, data = start(job, plan)
    outcome = hub.finish(plan.nodes)
    parts = hub.trainers["a"].training.view.links["stage-0"].rounds.plan.parts
    pieces = [
        (min(p.start for p in parts if p.fragment == turn), max(p.stop for p in parts if p.fragment == turn))
        for turn in range(3)
    ]
    assert pieces[0][1] == pieces[1][0] and pieces[2][1] == hub.trainers["a"].state.sections["stage-0"].layout.numel
    wanted = plain_local_losses(job, hub.facts, data, STEPS, plan.microbatches, pieces)
    assert [outcome.losses[step] for step in range(1, STEPS + 1)] == pytest.approx(wanted, abs=1e-4)
    assert not hub.errors and all(len(contents) == 1 for contents in outcome.fingerprints.values())


def test_fragments_over_deaths_and_joins_with_rounds_in_flight():
    job = job_of(NESTEROV, every=6, overlap=2, fragments=3, codec="int8", checkpoint=7)
    hub, data = start(job, TWO_BY_TWO)
    wait_until(lambda: hub.trainers["a"].step >= 3)
    hub.kill("d")
    hub.change(ONE, ["a", "b", "c"])
    wait_until(lambda: hub.trainers["a"].step >= 9)
    hub.start("e", data)
    plan = Plan(pipelines=(("a", "b"), ("c", "e")), stages=((0, 1), (2, 3)), microbatches=(3, 3))
    hub.change(plan, ["a", "b", "c"], ["e"])
    outcome = hub.finish(plan.nodes)
    assert not hub.errors
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    assert outcome.losses[STEPS] < outcome.losses[1]
    for name, trainer in hub.trainers.items():
        if name in plan.nodes:  # nothing of a run's last step is left in x alone
            for section in trainer.state.sections.values():
                assert float((section.x - section.g).abs().max()) < 0.02


def test_a_step_is_that_of_torchs_sgd():
    for outer in (Outer(0.7, 0.9, True), Outer(0.5, 0.9), Outer(0.5), Outer()):
        weight = torch.nn.Parameter(torch.randn(50))
        ours, momentum = weight.detach().clone(), torch.zeros(50) if outer.momentum else None
        mover = torch.optim.SGD([weight], lr=outer.rate, momentum=outer.momentum, nesterov=outer.nesterov)
        for _ in range(4):
            update = torch.randn(50)
            weight.grad = -update
            mover.step()
            ours += outer_step(outer, update.clone(), momentum)
        torch.testing.assert_close(ours, weight.detach(), rtol=0, atol=1e-5)


@pytest.mark.usefixtures("nobody_late")
def test_a_joiner_and_a_view_change_keep_the_momentum():
    job = job_of(NESTEROV, every=2, overlap=1, codec="int8")
    hub, _ = start(job, ONE)
    data = Windows(hub.facts)
    wait_until(lambda: hub.trainers["a"].step >= 4)
    for name in "cd":
        hub.start(name, data)
    hub.change(TWO_BY_TWO, ["a", "b"], ["c", "d"])
    wait_until(lambda: hub.trainers["a"].step >= 9)
    hub.kill("d")
    hub.change(ONE, ["a", "b", "c"])
    outcome = hub.finish(["a", "b"])
    assert not hub.errors
    assert outcome.losses[STEPS] < outcome.losses[1]
    for trainer in (hub.trainers["a"], hub.trainers["b"]):
        for section in trainer.state.sections.values():
            assert bool(section.outer.abs().sum() > 0)
    # What the joiners took over when they came (the hub refuses a view that begins with different content).
    assert outcome.views == 3


@pytest.mark.usefixtures("nobody_late")
def test_a_checkpoint_has_the_momentum():
    job = job_of(NESTEROV, every=4, checkpoint=8)
    hub, _ = start(job, TWO_BY_TWO)
    whole = hub.finish(TWO_BY_TWO.nodes)
    shards = {file: content for (step, file), content in hub.shards.items() if step == 8}
    meta = shards["stage-0.safetensors"][1]
    artifacts = {f"checkpoint/8/{file}": content for file, (content, _) in shards.items()}
    artifacts["checkpoint/8/manifest.json"] = json.dumps({**meta, "files": {file: {} for file in shards}}).encode()
    assert meta["redo"] == []
    again, _ = start(
        job,
        TWO_BY_TWO,
        artifacts,
        checkpoint=8,
        step=8,
        cursor=meta["cursor"],
        sections=[control_pb2.SectionState(section=name, round=round) for name, round in meta["rounds"].items()],
    )
    rest = again.finish(TWO_BY_TWO.nodes)
    # The first step has the very weights of the other run; moments of the local optimisers may be a peer's.
    assert rest.losses[9] == pytest.approx(whole.losses[9], abs=1e-6)
    for one, other in zip(hub.trainers.values(), again.trainers.values(), strict=True):
        for name, section in one.state.sections.items():
            match = torch.nn.functional.cosine_similarity(section.outer, other.state.sections[name].outer, dim=0)
            assert float(match) > 0.9


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("nestorov:lr=0.7", "did you mean 'nesterov'"),
        ("adam", "is not one of average"),
        ("sgd:lr=x", "is no number"),
        ("sgd:rate=1", "is not lr=NUMBER or momentum=NUMBER"),
        ("sgd:lr=0", "lr must be above 0"),
        ("nesterov:momentum=1", "momentum must be above 0 and below 1"),
        ("average:lr=1", "average has no keys"),
    ],
)
def test_outer_optimisers_that_mean_nothing(text, wrong):
    with pytest.raises(ValueError, match=wrong):
        parse_outer(text)


def test_outer_optimisers_in_words():
    assert parse_outer("nesterov") == Outer(1.0, 0.9, True)
    assert parse_outer("sgd:lr=0.5") == Outer(0.5)
    assert parse_outer("average").is_average and parse_outer("sgd").is_average
