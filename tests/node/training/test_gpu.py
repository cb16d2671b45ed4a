"""On a graphics card training gives the losses that it gives on the CPU, whatever travels between the nodes.

FARFLUNG_GPU names the device; ``cpu`` runs these tests where there is no card, so that they do not rot.
"""

import os

import pytest
import torch
from plain_loop import plain_losses
from plain_lora import save_base
from windows import Windows, facts_of

from farflung.job.schema import Job, Model
from farflung.node.rounds.round_link import RoundLink
from farflung.node.state import buckets
from farflung.node.training.steps.early_offers import SWITCH
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("nobody_late")]

DEVICE = os.environ.get("FARFLUNG_GPU", "cuda:0")
STEPS = 12


def job_of(precision="fp32", forward="none", train=None, **updates) -> Job:
    return Job.model_validate(
        {
            "run": {"name": "card", "seed": 3, "steps": STEPS},
            "model": {"family": "llama", "layers": 4, "width": 64, "heads": 4, "kv_heads": 2, "context": 16},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 12, "microbatch": 2, "learning_rate": 3e-3, "eval_every": 6, "precision": precision}
            | (train or {}),
            "updates": updates,
            "activations": {"forward": forward},
            "checkpoint": {"every": 4},
        }
    )


def train(job: Job, device: str, stages: int = 2, cuts=None, files=None):
    """Two pipelines of so many stages; their losses, and what they report. ``files``: of a model folder."""
    facts = facts_of(samples=100, validation=10, context=16, vocabulary=29, steps=STEPS)
    facts = facts.model_copy(update={"artifacts": dict.fromkeys(files or {}, "")})
    cuts = cuts or {1: ((0, 5),), 2: ((0, 2), (3, 5))}[stages]
    pipelines = tuple(tuple(f"n{d}{s}" for s in range(stages)) for d in range(2))
    plan = Plan(pipelines=pipelines, stages=cuts, microbatches=(4, 2), schedule="1f1b")
    hub = Hub(job, facts, files)
    for name in plan.nodes:
        hub.start(name, Windows(facts), device=device)
    hub.begin(plan, plan.nodes, checkpoint=0)
    outcome = hub.finish(plan.nodes)
    assert not hub.errors, hub.errors
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values()), "members of a group hold other bits"
    assert all(torch.isfinite(torch.tensor(loss)) for loss in outcome.losses.values())
    return [outcome.losses[step] for step in range(1, STEPS + 1)], facts, hub


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_card_trains_as_a_plain_loop_does(precision):
    job = job_of(precision, mode="gradient", codec="none")
    losses, facts, _ = train(job, DEVICE)
    wanted = plain_losses(job, facts, Windows(facts), STEPS, bf16=precision != "fp32")
    assert losses == pytest.approx(wanted, abs=2e-3 if precision == "fp32" else 5e-2)
    assert wanted[-1] < wanted[0] - 0.05  # it learns, so equality says something


UPDATES = {
    "gradient, int8": {"mode": "gradient", "codec": "int8"},
    "gradient, eden": {"mode": "gradient", "codec": "eden:bits=4"},
    "delta, cocktail": {"mode": "delta", "codec": "cocktail:random=0.5,top=0.5", "overlap": 1, "dense_rounds": 0},
    "delta, chunked top-k": {"mode": "delta", "codec": "chunked_topk:k=256,bits=8", "every": 3, "dense_rounds": 0},
    "delta, Nesterov": {"mode": "delta", "codec": "none", "every": 3, "outer": "nesterov:lr=0.7,momentum=0.9"},
    "delta, Muon": {"mode": "delta", "codec": "int8", "every": 2, "train": {"optimizer": "muon"}},
    "gradient, moments in main memory": {
        "mode": "gradient",
        "train": {"offload": True, "moments": "bf16", "recompute": True},
    },
    "gradient, optimizer in main memory": {"mode": "gradient", "train": {"offload": "optimizer"}},
    "delta, weights in main memory": {
        "mode": "delta",
        "codec": "int8",
        "train": {"offload": "parameters", "recompute": True},
    },
}


@pytest.mark.parametrize("updates", UPDATES.values(), ids=UPDATES)
def test_a_card_trains_as_the_cpu_does_with_codecs(updates):
    job = job_of(**updates)
    if job.train.offload_kind == "parameters" and DEVICE == "cpu":
        pytest.skip("a CPU's weights are in main memory anyway")
    card, _, hub = train(job, DEVICE, stages=1)
    there = job.train.model_copy(update={"offload": "none"})
    cpu, _, _ = train(job.model_copy(update={"train": there}), "cpu", stages=1)
    assert card == pytest.approx(cpu, abs=2e-2)
    assert {step for step, _ in hub.shards} == {4, 8, 12}  # checkpoints were written from the card


def test_rounds_that_begin_within_the_backward_pass_give_the_same_bits(monkeypatch):
    """On a card the pass, and so what begins in it, runs in a thread of its own."""
    monkeypatch.setattr(buckets, "LEAST", 4096)
    during = []
    offer = RoundLink.offer

    def noted(link, parts):
        during.append(len(parts))
        offer(link, parts)

    monkeypatch.setattr(RoundLink, "offer", noted)
    job = job_of(mode="gradient", block=1024)
    early, _, _ = train(job, DEVICE)
    assert len(during) > STEPS
    monkeypatch.setenv(SWITCH, "0")
    during.clear()
    assert train(job, DEVICE)[0] == early and not during


def test_adapters_beside_a_base_in_few_bits(tmp_path):
    folder = save_base(tmp_path / "base", "llama", 29)
    model = {"pretrained": str(folder), "context": 16, "lora": {"rank": 4, "base": "nf4"}}
    job = job_of(mode="gradient", train={"learning_rate": 0.02})
    job = job.model_copy(update={"model": Model.model_validate(model)})
    files = {f"model/{path.name}": path.read_bytes() for path in folder.iterdir()}
    card, cpu = (train(job, device, stages=1, cuts=((0, 1),), files=files)[0] for device in (DEVICE, "cpu"))
    assert card == pytest.approx(cpu, abs=2e-2)


@pytest.mark.parametrize("forward", ["bf16", "int8", "aqsgd:bits=4"])
def test_activations_between_a_card_and_a_card(forward):
    card, _, _ = train(job_of(forward=forward, mode="gradient", codec="none"), DEVICE)
    cpu, _, _ = train(job_of(forward=forward, mode="gradient", codec="none"), "cpu")
    assert card == pytest.approx(cpu, abs=2e-2)


def test_a_group_of_a_card_and_a_cpu_holds_the_same_bits():
    job = job_of(mode="delta", codec="int8", every=2)
    facts = facts_of(samples=100, validation=10, context=16, vocabulary=29, steps=STEPS)
    plan = Plan(pipelines=(("card",), ("cpu",)), stages=((0, 5),), microbatches=(4, 2), schedule="1f1b")
    hub = Hub(job, facts)
    hub.start("card", Windows(facts), device=DEVICE)
    hub.start("cpu", Windows(facts), device="cpu")
    hub.begin(plan, plan.nodes, checkpoint=0)
    outcome = hub.finish(plan.nodes)
    assert not hub.errors, hub.errors
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
