"""The trainer on a device that refuses what CUDA refuses: models, optimisers, rounds, snapshots and state transfer; and
how often a step makes the host wait for the device."""

from collections import Counter, defaultdict
from dataclasses import replace

import pytest
import torch
from allocations import Allocations
from far_device import FAR, Far, far_device
from windows import Windows, facts_of

from farflung.job.schema import Job
from farflung.node.rounds.arithmetic import batches
from farflung.node.rounds.protocol import payloads
from farflung.node.state.optimizers import adamw_fused
from farflung.node.state.optimizers.optimizers import AdamW
from farflung.node.state.sections import vectors
from farflung.node.state.sections.moments import Kept
from farflung.node.state.sections.section import Layout, Section
from farflung.node.training.member.view_member import ViewMember
from farflung.node.training.trainer import Trainer
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

pytestmark = pytest.mark.usefixtures("nobody_late", "waits")

STEPS = 3
MICROBATCHES = 6
ALONE = Plan(pipelines=(("n0",),), stages=((0, 2),), microbatches=(6,), schedule="1f1b")
GROUP = Plan(pipelines=(("n0",), ("n1",)), stages=((0, 2),), microbatches=(4, 2), schedule="1f1b")
STAGES = Plan(pipelines=(("n0", "n1"),), stages=((0, 1), (2, 2)), microbatches=(6,), schedule="1f1b")


@pytest.fixture
def allocations():
    """By node: what allocated large tensors."""
    return defaultdict(Counter)


@pytest.fixture
def waits(monkeypatch, allocations):
    """Every trainer's thread computes on the far device. Of all of them: what the host waited for."""
    found = Counter()
    run = Trainer.run

    def on_device(trainer):
        with far_device(found), Allocations(allocations[trainer.context.name]):
            run(trainer)

    monkeypatch.setattr(Trainer, "run", on_device)
    monkeypatch.setenv("FARFLUNG_KERNELS", "0")
    return found


def job_of(train=None, activations=None, steps=STEPS, quiet=False, model=None, **updates) -> Job:
    return Job.model_validate(
        {
            "run": {"name": "far", "seed": 3, "steps": steps},
            "model": {"family": "llama", "layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "context": 8}
            | (model or {}),
            "data": {"text": ["none.txt"]},
            "train": {"batch": 6, "microbatch": 1, "learning_rate": 3e-3, "eval_every": 0 if quiet else 2}
            | (train or {}),
            "activations": activations or {},
            "updates": {"block": 4096, **updates},
            "checkpoint": {"every": 0 if quiet else 2},
        }
    )


def trained(job: Job, plan: Plan, device: str = str(FAR), samples: int = 60) -> Hub:
    facts = facts_of(samples=samples, validation=2, context=8, vocabulary=29, steps=job.run.steps)
    hub, data = Hub(job, facts), Windows(facts)
    for name in plan.nodes:
        hub.start(name, data, device=device)
    hub.begin(plan, plan.nodes, checkpoint=0)
    outcome = hub.finish(plan.nodes)
    assert not hub.errors, hub.errors
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    assert all(trainer.context.device == torch.device(device) for trainer in hub.trainers.values())
    return hub


def test_losses_are_those_of_a_cpu():
    far, near = (trained(job_of(mode="gradient"), GROUP, device) for device in (str(FAR), "cpu"))
    assert far.outcome.losses == pytest.approx(near.outcome.losses, abs=1e-5) and len(far.outcome.losses) == STEPS
    (section,) = far.trainers["n0"].state.sections.values()
    assert isinstance(section.g, Far) and isinstance(section.moments["v"], Far)
    assert {step for step, _ in far.shards} == {2, 3}


DELTA = {"mode": "delta"}
WAYS = {
    "int8, LAMB": ({"mode": "gradient", "codec": "int8"}, {"optimizer": "lamb", "moments": "bf16"}),
    "phases, SGD": ({"mode": "gradient", "codec": "randomk:ratio=0.1"}, {"optimizer": "sgd", "momentum": 0.9}),
    "Adafactor": ({"mode": "gradient"}, {"optimizer": "adafactor", "weight_decay": 0.1}),
    "1-bit Adam": ({"mode": "gradient", "codec": "sign", "dense_rounds": 1}, {"optimizer": "onebit_adam"}),
    "cocktail": (
        {**DELTA, "codec": "cocktail:random=0.5,top=0.5", "overlap": 1},
        {"offload": True, "moments": "bf16", "weight_decay": 0.1},
    ),
    "two in flight": (
        {**DELTA, "codec": "chunked_topk:k=16,feedback=true", "every": 2, "overlap": 2},
        {"optimizer": "muon"},
    ),
    "residuals in bf16": (
        {**DELTA, "codec": "chunked_topk:k=16,feedback=true", "every": 2, "overlap": 2, "residual": "bf16"},
        {},
    ),
    "Nesterov": (
        {**DELTA, "every": 2, "fragments": 2, "outer": "nesterov:lr=0.7,momentum=0.9"},
        {"optimizer": "lion", "recompute": True},
    ),
    "robust": ({**DELTA, "codec": "int4", "robust": "centered:tau=1"}, {}),
    "gossip": ({**DELTA, "codec": "int8", "pattern": "gossip", "agreed": False}, {}),
}


@pytest.mark.parametrize(("updates", "train"), WAYS.values(), ids=WAYS)
def test_rounds_and_optimisers(updates, train):
    assert len(trained(job_of(train, **updates), GROUP).outcome.losses) == STEPS


def test_fused_adamw_moves_as_our_own_does():
    """With local weights torch's fused kernel takes the step; where g is x its bits would not be everybody's."""
    layout = Layout.of("stage-0", {"matrix": (6, 5), "vector": (7,)})
    adamw, found = AdamW((0.9, 0.95), 1e-8, 0.1), []
    with far_device() as device:
        for shared, place in ((False, device), (True, device), (False, torch.device("cpu"))):
            section = Section(layout, shared, Kept(("m", "v")), place)
            assert adamw_fused.takes(section) is (not shared and place == device)
            section.x.copy_(torch.arange(37) * 0.01)
            for count in (1, 2, 3):
                section.grad.copy_(torch.arange(37) * 0.1 - count)
                adamw.step(section, count, 0.01)
            found.append(section.x.cpu())
    assert torch.equal(found[1], found[2])
    assert torch.allclose(found[0], found[2], rtol=0, atol=1e-6) and not torch.equal(found[0], torch.arange(37) * 0.01)


def test_activations_that_are_kept_lie_in_main_memory():
    """AQ-SGD may keep more than a device holds; its room is counted in main memory."""
    job = job_of(activations={"forward": "aqsgd:bits=4", "backward": "int8"})
    hub = trained(job, STAGES, samples=6)  # each sample comes in every step
    (sender,) = hub.trainers["n0"].resources.ends._senders.values()
    assert sender.counters.hits and len(sender._entries) == 6
    assert not any(isinstance(entry.value, Far) for entry in sender._entries.values())


def test_a_joiner_takes_weights_and_moments():
    job = job_of(mode="gradient")
    facts = facts_of(samples=60, validation=2, context=8, vocabulary=29, steps=STEPS)
    hub = Hub(job, facts)
    for name in GROUP.nodes:
        hub.start(name, Windows(facts), device=str(FAR))
    hub.begin(ALONE, ALONE.nodes, checkpoint=0)
    hub.change(GROUP, ALONE.nodes, ["n1"])
    outcome = hub.finish(GROUP.nodes)
    assert not hub.errors, hub.errors
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())


@pytest.mark.parametrize(
    ("plan", "microbatch", "step"),
    [
        (ALONE, {"__bool__": 1}, {"tolist": 2, "__float__": 1}),
        # Where stages are cut: whether what goes is finite, and its copy; both ways.
        (STAGES, {"__bool__": 2 + 2, "cpu": 2}, {"tolist": 2, "__float__": 2}),
    ],
    ids=["alone", "two stages"],
)
def test_how_often_the_host_waits(waits, plan, microbatch, step):
    """The numbers of docs/gpu.md. Each stage's pass waits once, in `transformers`' look for packed samples; a step for
    the losses, the targets named right, and the norm of each section's gradient. Nothing that goes up is waited for."""
    counts = []
    for steps in (2, 4):
        waits.clear()
        trained(job_of(steps=steps, quiet=True, mode="gradient"), plan)
        counts.append(Counter(waits))
    a_step = {name: (counts[1][name] - counts[0][name]) / 2 for name in counts[1]}
    wanted = Counter(step) + Counter({name: MICROBATCHES * count for name, count in microbatch.items()})
    assert {name: count for name, count in a_step.items() if count} == wanted


LONG = {"layers": 3, "width": 128}
"""A stage of 2 MB, whose matrices, and segments, take less than LARGE."""
WAYS_TO_AGREE = {
    "gradient, int8": {"mode": "gradient", "codec": "int8"},
    "delta, none": {"mode": "delta", "overlap": 1},
    "delta, cocktail": {"mode": "delta", "codec": "cocktail:random=0.5,top=0.5", "overlap": 1},
}


@pytest.mark.parametrize("updates", WAYS_TO_AGREE.values(), ids=WAYS_TO_AGREE)
def test_no_step_allocates_a_vector_as_long_as_the_stage(allocations, monkeypatch, updates):
    """A number of docs/gpu.md: whatever its length, a step needs new memory for segments and pieces alone."""
    monkeypatch.setattr("allocations.LARGE", 3 << 19)
    monkeypatch.setattr(payloads, "SEGMENT", 1 << 16)
    monkeypatch.setattr(batches, "AT_ONCE", 1 << 18)
    monkeypatch.setattr(vectors, "PIECE", 1 << 16)
    after, stepped = {}, ViewMember.stepped

    def counted_step(view, step):
        after[view.context.name, step] = Counter(allocations[view.context.name])
        stepped(view, step)

    monkeypatch.setattr(ViewMember, "stepped", counted_step)
    trained(job_of(steps=3, quiet=True, model=LONG, **updates), replace(GROUP, stages=((0, 4),)))
    for name in GROUP.nodes:
        assert after[name, 1], "what is allocated once is counted"
        assert after[name, 3] - after[name, 2] == Counter()
