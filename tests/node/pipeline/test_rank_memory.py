"""What `farflung plan --memory` says a device of an island holds, against what torch allocates in the first process."""

import gc
from contextlib import nullcontext

import pytest
import torch
from allocated import peak_of
from windows import facts_of

from farflung.job.schema import Job
from farflung.node.models.factory import model_of
from farflung.node.pipeline.spread_pass import SpreadPass
from farflung.node.state.optimizers.make_optimizer import make_optimizer
from farflung.node.state.stage_state import StageState
from farflung.scheduler import Plan
from farflung.scheduler.workloads.inside import rank_needs
from farflung.scheduler.workloads.jobs import workload_of

LAYERS, WIDTH, CONTEXT, VOCABULARY, MICROBATCH = 3, 128, 64, 1000, 16
CASES = {
    "rows, bf16": ("llama", "fsdp", 0, 3, {"precision": "bf16"}),
    "matrices": ("llama", "tp", 0, 2, {}),
}


@pytest.mark.parametrize(("family", "kind", "stage", "held", "train"), CASES.values(), ids=CASES)
def test_the_calculator_is_right_for_a_device_of_an_island(island, family, kind, stage, held, train):
    job = Job.model_validate(
        {
            "run": {"name": "memory", "steps": 3},
            "model": {"family": family, "layers": LAYERS, "width": WIDTH, "heads": 4, "context": CONTEXT},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 2 * MICROBATCH, "microbatch": MICROBATCH, **train},
            "parallel": {"inside": kind},
        }
    )
    facts = facts_of(samples=8, validation=1, context=CONTEXT, vocabulary=VOCABULARY, steps=3)
    stages = ((0, 2), (3, LAYERS + 1))
    plan, name = Plan(pipelines=(("n0", "n1"),), stages=stages, microbatches=(2,)), f"n{stage}"
    definition = model_of(job, facts)
    state = StageState(definition, job, plan, name, make_optimizer(job), torch.device("cpu"), shared=True)
    (model,), sections = state.models, list(state.sections.values())
    island.take_up(job, facts, lambda *_: b"", ())
    island.place(plan, name, (), sections)
    for section in sections:
        section.x.normal_(std=0.02)

    def step():
        island.share(sections)
        with torch.autocast("cpu", torch.bfloat16) if train.get("precision") == "bf16" else nullcontext():
            passes = [passed(model.train()) for _ in range(held)]
        while passes:
            one = passes.pop(0)
            one.backward(torch.ones_like(one.output), 1.0)
        island.sum(sections)

    def passed(model):
        ids = torch.randint(0, VOCABULARY, (MICROBATCH, CONTEXT))
        return SpreadPass(island, 0, model, ids if model.is_first else torch.randn(MICROBATCH, CONTEXT, WIDTH), ids)

    step()
    gc.collect()
    workload = workload_of(job.model_dump(), vocabulary=VOCABULARY)
    need, other = rank_needs(workload, stages[stage], held, kind, 2)
    assert other.device - other.sections == need.device - need.sections
    assert need.device - need.sections == pytest.approx(island.bytes_held[0] + peak_of(step), rel=0.05)
