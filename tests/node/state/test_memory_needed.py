"""What `farflung plan --memory` says a stage takes, against what torch allocates for it, within 5 %."""

import pytest
from allocated import peak_of_a_step
from windows import facts_of

from farflung.job.schema import Job
from farflung.node.models.factory import model_of
from farflung.scheduler.workloads.jobs import workload_of
from farflung.scheduler.workloads.memory import need_of

LAYERS, WIDTH, CONTEXT, VOCABULARY, MICROBATCH = 3, 128, 64, 1000, 4
CASES = {
    "first of two": ("gpt2", "delta", 0, 2, {}),
    "last of two, computed again": ("llama", "delta", 1, 2, {"recompute": True}),
    "last of two, bf16": ("gpt_neox", "gradient", 1, 1, {"precision": "bf16", "moments": "bf16"}),
    "alone, tied": ("gpt2", "gradient", None, 1, {"optimizer": "sgd", "momentum": 0.9}),
}
OFFLOADED = {
    "moments": ("gpt2", "delta", 0, 2, {"offload": "moments"}),
    "optimizer": ("gpt2", "delta", 0, 2, {"offload": "optimizer"}),
    "optimizer, alone, bf16": ("llama", "gradient", None, 1, {"offload": "optimizer", "precision": "bf16"}),
    "parameters, last of two": ("llama", "delta", 1, 2, {"offload": "parameters", "recompute": True}),
    "parameters, alone": ("gpt2", "gradient", None, 1, {"offload": "parameters", "recompute": True}),
    "parameters, first of two": ("gpt_neox", "delta", 0, 1, {"offload": "parameters", "recompute": True}),
}
LARGE = {
    "parameters": ("gpt2", "delta", 0, 2, {"offload": "parameters", "recompute": True}),
    "parameters, alone": ("gpt2", "gradient", None, 1, {"offload": "parameters", "recompute": True}),
    "parameters, bf16": (
        "llama",
        "gradient",
        None,
        1,
        {"offload": "parameters", "recompute": True, "precision": "bf16"},
    ),
    "optimizer, alone, bf16": (
        "gpt2",
        "gradient",
        None,
        1,
        {"offload": "optimizer", "recompute": True, "precision": "bf16"},
    ),
}
"""Weights that are many times as large as what a microbatch keeps: gradients come while a block's weights are there,
and a tied embedding's waits for the end."""
AGAIN = {"recompute": True}
SMALL = {
    "first of two": ("gpt_neox", "gradient", 0, 1, {}),
    "first of two, two in flight": ("gpt_neox", "gradient", 0, 2, {"precision": "bf16"}),
    "last of two": ("llama", "gradient", 1, 1, {}),
    "first of two, computed again": ("gpt_neox", "gradient", 0, 1, AGAIN),
    "first of two, computed again, two in flight": ("gpt2", "gradient", 0, 2, AGAIN),
    "last of two, computed again": ("gpt_neox", "gradient", 1, 1, {"precision": "bf16", **AGAIN}),
    "last of two, computed again, fp32": ("llama", "gradient", 1, 1, AGAIN),
    "alone, computed again": ("gpt2", "gradient", None, 1, {"precision": "bf16", **AGAIN}),
    "alone, computed again, two in flight": ("gpt_neox", "gradient", None, 2, AGAIN),
}
"""Weights that are a small part: the largest layer counts with its own working memory, and where the stage ends."""


@pytest.mark.parametrize(("family", "mode", "stage", "held", "train"), CASES.values(), ids=CASES)
def test_the_calculator_is_right(family, mode, stage, held, train):
    need, peak = needed_and_measured(family, mode, stage, held, train)
    assert need.device == pytest.approx(peak, rel=0.05)


@pytest.mark.parametrize(("family", "mode", "stage", "held", "train"), OFFLOADED.values(), ids=OFFLOADED)
def test_the_calculator_is_right_where_the_job_offloads(family, mode, stage, held, train):
    """What lies in main memory is as many vectors as the job says; the rest of the peak is the device's."""
    need, peak = needed_and_measured(family, mode, stage, held, train)
    assert need.device == pytest.approx(peak - need.host, rel=0.05)


@pytest.mark.parametrize(("family", "mode", "stage", "held", "train"), LARGE.values(), ids=LARGE)
def test_the_calculator_is_right_where_weights_are_most_of_it(family, mode, stage, held, train, monkeypatch):
    for name, value in {"LAYERS": 6, "WIDTH": 256, "CONTEXT": 32, "VOCABULARY": 2000}.items():
        monkeypatch.setitem(globals(), name, value)
    need, peak = needed_and_measured(family, mode, stage, held, train)
    assert need.device == pytest.approx(peak - need.host, rel=0.05)


@pytest.mark.parametrize(("family", "mode", "stage", "held", "train"), SMALL.values(), ids=SMALL)
def test_the_calculator_is_right_where_tokens_are_most_of_it(family, mode, stage, held, train, monkeypatch):
    for name, value in {"WIDTH": 64, "CONTEXT": 128, "VOCABULARY": 256, "MICROBATCH": 8}.items():
        monkeypatch.setitem(globals(), name, value)
    need, peak = needed_and_measured(family, mode, stage, held, train)
    assert need.device == pytest.approx(peak, rel=0.03)


def needed_and_measured(family, mode, stage, held, train):
    job = Job.model_validate(
        {
            "run": {"name": "memory", "steps": 3},
            "model": {"family": family, "layers": LAYERS, "width": WIDTH, "heads": 4, "context": CONTEXT},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 8, "microbatch": MICROBATCH, **train},
            "updates": {"mode": mode},
        }
    )
    stages = ((0, LAYERS + 1),) if stage is None else ((0, 2), (3, LAYERS + 1))
    definition = model_of(job, facts_of(samples=8, validation=1, context=CONTEXT, vocabulary=VOCABULARY, steps=3))
    place = stage or 0
    need = need_of(job.model_dump(), workload_of(job.model_dump(), vocabulary=VOCABULARY), stages[place], held, 1)
    return need, peak_of_a_step(job, definition, stages, place, held, VOCABULARY)


def test_errors_and_messages_by_mode():
    def copies(members, codec, overlap=0, **updates):
        job = {"model": {"layers": 2, "width": 64}, "updates": {"codec": codec, "overlap": overlap, **updates}}
        if updates.get("mode") == "delta" and overlap > 1:
            job["updates"]["every"] = overlap
        need = need_of(job, workload_of(job), (0, 3), 1, members)
        return tuple(round(value / need.weights, 2) for value in (need.reference, need.errors, need.messages))

    delta, sparse = {"mode": "delta"}, "chunked_topk:k=64,bits=2,feedback=true"
    assert copies(1, "int8") == (0, 0, 0)
    assert copies(2, "none") == (0, 0, 2)
    assert copies(4, "int8") == (0, 1.5, 0.7)  # its own, and of the sums before and after
    assert copies(2, "none", **delta) == (1, 0, 3)
    assert copies(4, "int4", **delta)[:2] == (1, 0.25)
    assert copies(4, sparse, 1, **delta)[:2] == (1, 1.25)
    assert copies(4, sparse, 2, **delta)[:2] == (1, 2.25)
    assert copies(4, "none", outer="nesterov:lr=0.7,momentum=0.9", **delta)[:2] == (2, 0)
    job = {"model": {"layers": 2, "width": 64}, "train": {"offload": True}}
    offloaded = need_of(job, workload_of(job), (0, 3), 1, 1)
    assert offloaded.host == offloaded.moments == 2 * offloaded.weights
    assert offloaded.device == offloaded.weights + offloaded.gradient + offloaded.activations
