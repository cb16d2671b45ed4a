"""Small runs in which node n0 may be an island, and what they must compute."""

import pytest
from plain_loop import plain_losses
from windows import Windows, facts_of

from farflung.job.schema import Job
from farflung.node.pipeline.island import Island
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

STEPS = 4
FACTS = facts_of(samples=100, validation=10, context=16, vocabulary=29, steps=STEPS)
DATA = Windows(FACTS)
ONE_STAGE = Plan(pipelines=(("n0",),), stages=((0, 3),), microbatches=(4,), schedule="1f1b")
TWO_STAGES = Plan(pipelines=(("n1", "n0"),), stages=((0, 1), (2, 3)), microbatches=(4,), schedule="1f1b")
MIDDLE = Plan(pipelines=(("n1", "n0", "n2"),), stages=((0, 0), (1, 2), (3, 3)), microbatches=(4,), schedule="gpipe")
GROUP = Plan(pipelines=(("n0",), ("n1",)), stages=((0, 3),), microbatches=(3, 1), schedule="1f1b")


def job_of(family="gpt2", inside="fsdp", microbatch=3, recompute=False, model=None, train=None, **updates) -> Job:
    return Job.model_validate(
        {
            "run": {"name": "island", "seed": 3, "steps": STEPS},
            "model": {"family": family, "layers": 2, "width": 32, "heads": 4, "context": 16, **(model or {})},
            "data": {"text": ["none.txt"]},
            "train": {
                "batch": 12,
                "microbatch": microbatch,
                "learning_rate": 1e-2,
                "eval_every": 2,
                "recompute": recompute,
                **(train or {}),
            },
            "parallel": {"inside": inside},
            "updates": {"mode": "gradient", "block": 1024, **updates},
            "checkpoint": {"every": 0},
        }
    )


def trained(job: Job, plan: Plan, island: Island | None):
    hub = Hub(job, FACTS)
    for name in plan.nodes:
        own = island if name == "n0" else None
        hub.start(name, DATA, own, device="cpu" if own is None else str(own.device))
    hub.begin(plan, plan.nodes, checkpoint=0)
    outcome = hub.finish(plan.nodes)
    assert not hub.errors, hub.errors
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    return outcome


def assert_plain(job: Job, plan: Plan, island: Island, close: float = 1e-5) -> None:
    outcome = trained(job, plan, island)
    wanted = plain_losses(job, FACTS, DATA, STEPS)
    assert [outcome.losses[step] for step in range(1, STEPS + 1)] == pytest.approx(wanted, abs=close)
    assert wanted[-1] < wanted[0] - 0.02
