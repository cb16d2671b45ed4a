"""With codec none, training over any cluster shape is the plain loop, up to float rounding."""

from dataclasses import replace

import pytest
import torch
from plain_loop import plain_losses
from windows import Windows, facts_of

from farflung.job.schema import Job
from farflung.node.state.optimizers.optimizers import norm
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

pytestmark = pytest.mark.usefixtures("nobody_late")

STEPS = 8  # past the warm-up (5) and the end of an epoch (74 samples, in the 7th step)
LAYERS = 6  # embedding, 4 blocks, head

SHAPES = {
    "1x1": (((0, 5),), (6,)),
    "2x1": (((0, 2), (3, 5)), (6,)),
    "1x2": (((0, 5),), (4, 2)),
    "2x2": (((0, 1), (2, 5)), (3, 3)),
    "3x2": (((0, 0), (1, 3), (4, 5)), (1, 5)),
    "4x1": (((0, 1), (2, 2), (3, 3), (4, 5)), (6,)),
    "4x2": (((0, 0), (1, 2), (3, 3), (4, 5)), (3, 3)),
    "6x2": (((0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5)), (5, 1)),
}


def job_of(family="gpt2", tie=None, schedule="1f1b", recompute=False, precision="fp32", **updates) -> Job:
    return Job.model_validate(
        {
            "run": {"name": "equal", "seed": 3, "steps": STEPS},
            "model": {"family": family, "layers": 4, "width": 32, "heads": 4, "context": 16, "tie": tie},
            "data": {"text": ["none.txt"]},
            "train": {
                "batch": 12,
                "microbatch": 2,
                "learning_rate": 3e-3,
                "warmup_steps": 5,
                "weight_decay": 0.1,
                "eval_every": 4,
                "precision": precision,
                "recompute": recompute,
            },
            "parallel": {"schedule": schedule},
            "updates": {"mode": "gradient", "block": 1024, **updates},
            "checkpoint": {"every": 0},
        }
    )


def plan_of(shape: str, schedule: str) -> Plan:
    stages, shares = SHAPES[shape]
    nodes = 2 if schedule == "interleaved" else len(stages)
    pipelines = tuple(tuple(f"n{d}{s % nodes}" for s in range(len(stages))) for d in range(len(shares)))
    return Plan(pipelines=pipelines, stages=stages, microbatches=shares, schedule=schedule)


def train(job: Job, plan: Plan):
    facts = facts_of(samples=74, validation=10, context=16, vocabulary=29, steps=STEPS)
    data = Windows(facts)
    hub = Hub(job, facts)
    for name in plan.nodes:
        hub.start(name, data)
    hub.begin(plan, plan.nodes, checkpoint=0)
    outcome = hub.finish(plan.nodes)
    assert not hub.errors, hub.errors
    return outcome, facts, data


def check(job: Job, shape: str, tolerance: float, in_flight: tuple[tuple[int, ...], ...] = ()) -> None:
    outcome, facts, data = train(job, replace(plan_of(shape, job.parallel.schedule), in_flight=in_flight))
    wanted = plain_losses(job, facts, data, STEPS, bf16=job.train.precision == "bf16")
    got = [outcome.losses[step] for step in range(1, STEPS + 1)]
    assert got == pytest.approx(wanted, abs=tolerance)
    assert wanted[-1] < wanted[0] - 0.05  # it learns, so equality says something
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    assert outcome.samples == STEPS * job.train.batch
    assert sorted(outcome.evals) == [4, 8]


PAIRWISE = [
    ("1x1", "gpt2", True, "gpipe", False),
    ("1x1", "llama", False, "1f1b", True),
    ("2x1", "gpt2", False, "1f1b", False),
    ("2x1", "gpt_neox", True, "gpipe", True),
    ("1x2", "llama", True, "gpipe", False),
    ("1x2", "gpt_neox", False, "1f1b", False),
    ("2x2", "gpt2", True, "1f1b", True),
    ("2x2", "llama", False, "gpipe", False),
    ("3x2", "gpt2", True, "1f1b", False),
    ("3x2", "gpt_neox", False, "gpipe", True),
    ("3x2", "llama", True, "1f1b", True),
    ("4x1", "gpt2", True, "interleaved", False),
    ("4x2", "llama", False, "interleaved", True),
    ("6x2", "gpt2", True, "interleaved", False),
]


@pytest.mark.parametrize(("shape", "family", "tie", "schedule", "recompute"), PAIRWISE)
def test_equal_to_the_plain_loop(shape, family, tie, schedule, recompute):
    check(job_of(family, tie, schedule, recompute), shape, 1e-4)


@pytest.mark.parametrize("in_flight", [((1, 5, 2), (5, 1, 3))])
def test_however_many_microbatches_are_in_flight(in_flight):
    check(job_of(), "3x2", 1e-4, in_flight)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
@pytest.mark.parametrize("shape", list(SHAPES)[:5])
def test_equal_to_the_plain_loop_in_every_combination(shape, family, tie, schedule, recompute):
    check(job_of(family, tie, schedule, recompute), shape, 1e-4)


@pytest.mark.parametrize(("shape", "family"), [("2x2", "gpt2"), ("3x2", "llama")])
def test_bf16_is_close_to_the_plain_loop(shape, family):
    check(job_of(family, precision="bf16"), shape, 2e-2)


@pytest.mark.parametrize("pattern", ["publishers", "all_to_all"])
def test_patterns_give_the_same_sum(pattern):
    check(job_of(pattern=pattern), "2x2", 1e-4)


@pytest.mark.parametrize(("optimizer", "clip"), [("lamb", 1.0), ("onebit_adam", 0.0)])
def test_optimisers_that_look_at_parameters_or_exchange_momentum(optimizer, clip):
    job = job_of(dense_rounds=5)
    change = {"optimizer": optimizer, "weight_decay": 0.0, "clip": clip, "learning_rate": 1e-2}
    check(job.model_copy(update={"train": job.train.model_copy(update=change)}), "2x2", 1e-4)


def test_adafactor():
    """A llama: where a gradient is rounding alone, as of a gpt2's key biases, the step is its sign."""
    job = job_of("llama")
    change = {"optimizer": "adafactor", "weight_decay": 0.0}
    check(job.model_copy(update={"train": job.train.model_copy(update=change)}), "2x2", 1e-4)


def test_sgd_with_momentum():
    job = job_of()
    job = job.model_copy(
        update={
            "train": job.train.model_copy(
                update={"optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.3, "weight_decay": 0.0}
            )
        }
    )
    check(job, "2x2", 1e-4)


def test_the_norm_is_the_same_in_any_order():
    values = torch.randn(10_001, generator=torch.Generator().manual_seed(1)) * 1e-3
    assert norm(values) == norm(values.flip(0)) == pytest.approx(float(values.double().norm()), rel=1e-9)
    assert norm(torch.zeros(5)) == 0.0 and norm(torch.full((3,), 3e30)) == pytest.approx(3e30 * 3**0.5)


def test_a_pipeline_with_smaller_microbatches_is_equal_to_the_plain_loop():
    job, plan = job_of(), replace(plan_of("2x2", "1f1b"), pieces=(2, 1))
    outcome, facts, data = train(job, plan)
    wanted = plain_losses(job, facts, data, STEPS)
    assert [outcome.losses[step] for step in range(1, STEPS + 1)] == pytest.approx(wanted, abs=1e-4)
    whole, _, _ = train(job, plan_of("2x2", "1f1b"))
    assert outcome.evals == pytest.approx(whole.evals, abs=1e-5) and outcome.samples == STEPS * job.train.batch


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_bf16_moments_end_at_the_same_loss(optimizer):
    """Within 1 %, and the members of the group keep the same bits."""
    ends = {}
    for moments in ("fp32", "bf16"):
        job = job_of()
        changed = job.train.model_copy(update={"optimizer": optimizer, "moments": moments})
        outcome, _, _ = train(job.model_copy(update={"train": changed}), plan_of("1x2", "1f1b"))
        assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
        ends[moments] = outcome
    assert ends["bf16"].evals[STEPS] == pytest.approx(ends["fp32"].evals[STEPS], rel=0.01)
    assert ends["bf16"].losses[STEPS] == pytest.approx(ends["fp32"].losses[STEPS], rel=0.01)
    assert ends["bf16"].losses != ends["fp32"].losses
