"""A step's peak of memory, as torch's allocator has it, is what the plan counts for the stage, within 10 %."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from farflung.node.models.decoders.families import fresh_config
from farflung.node.models.definition import LanguageModel
from farflung.node.models.profiling.cost import language_layers
from farflung.node.models.stage import Pass
from farflung.scheduler import Layer, Workload
from farflung.scheduler.workloads.layers import stage_memory

CONTEXT, SAMPLES, VOCABULARY, WIDTH, BLOCKS = 128, 4, 512, 128, 3


def peak_of(work):
    """Bytes: the most that was allocated at once while ``work()`` ran, beyond what was there before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    now = most = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


@pytest.mark.parametrize(
    ("family", "precision", "first", "last", "held", "recompute"),
    [
        ("gpt2", "fp32", 0, BLOCKS + 1, 1, False),
        ("llama", "fp32", 0, 2, 3, False),
        ("llama", "bf16", 2, BLOCKS + 1, 2, False),
        ("gpt2", "fp32", 0, BLOCKS, 2, True),
    ],
)
def test_the_peak_of_a_step(family, precision, first, last, held, recompute):
    shape = SimpleNamespace(family=family, width=WIDTH, layers=BLOCKS, heads=4, kv_heads=None)
    definition = LanguageModel(fresh_config(shape, VOCABULARY, CONTEXT), recompute)
    stage = definition.build(first, last)
    definition.initialise(stage, 0)
    stage.train()
    ids = torch.randint(0, VOCABULARY, (SAMPLES, CONTEXT))
    for weight in stage.parameters():
        weight.grad = torch.zeros_like(weight)  # a node's gradients are there all the time, as moments are

    def step():
        autocast = torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
        passes = []
        for _ in range(held):
            with autocast:
                inputs = ids if first == 0 else torch.randn(SAMPLES, CONTEXT, WIDTH)
                passes.append(Pass(stage, inputs, ids))
        for made in passes:
            made.backward(torch.ones_like(made.output))
            made.output = None

    layers = [
        Layer(
            one.name,
            one.parameters,
            one.flops_per_sample,
            max(1, one.activation_elements_per_sample),
            one.stored_elements_per_sample,
            one.frozen,
            one.copied_elements,
            one.working_elements_per_sample,
        )
        for one in language_layers(definition, CONTEXT, precision)
    ]
    work = Workload(tuple(layers), SAMPLES, SAMPLES, optimizer_bytes=0.0, recompute=recompute)
    told = stage_memory(work, first, last, held)
    assert peak_of(step) == pytest.approx(told, rel=0.1)
