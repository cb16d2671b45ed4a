"""``train.precision = "fp16"``: the loss scale is torch's, over any stages, and a step that overflows anywhere is
dropped everywhere."""

import json

import pytest
import torch
from plain_loop import plain_model, plain_optimizer
from windows import Windows, facts_of, wait_until

from farflung.job.data.sampling import Position, sample_ids
from farflung.job.schema import Job
from farflung.node.state import loss_scale
from farflung.node.state.optimizers.learning_rates import learning_rate
from farflung.proto import control_pb2
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

pytestmark = pytest.mark.usefixtures("nobody_late")

STEPS, PATIENCE = 16, 4
FACTS = facts_of(samples=90, validation=6, context=8, vocabulary=17, steps=STEPS)
TWO_BY_TWO = Plan(pipelines=(("a", "b"), ("c", "d")), stages=((0, 1), (2, 3)), microbatches=(3, 3))
THREE = Plan(pipelines=(("a", "b", "c"),), stages=((0, 0), (1, 2), (3, 3)), microbatches=(6,))
LEFT = Plan(pipelines=(("a", "b"),), stages=((0, 1), (2, 3)), microbatches=(6,))


def job_of(mode="gradient", recompute=False, checkpoint=0, **updates) -> Job:
    return Job.model_validate(
        {
            "run": {"name": "fp16", "seed": 3, "steps": STEPS},
            "model": {"family": "gpt2", "layers": 2, "width": 16, "heads": 2, "context": 8},
            "data": {"text": ["none.txt"]},
            "train": {
                "batch": 12,
                "microbatch": 2,
                "learning_rate": 1e-2,
                "eval_every": 8,
                "precision": "fp16",
                "loss_scale_steps": PATIENCE,
                "recompute": recompute,
            },
            "updates": {"mode": mode, "block": 256, **updates},
            "checkpoint": {"every": checkpoint},
        }
    )


@pytest.fixture(autouse=True)
def too_large_a_scale(monkeypatch):
    """So that the first steps overflow."""
    monkeypatch.setattr(loss_scale, "FIRST", 2.0**28)


def plain_losses(job):
    """(loss of each step, scale after each step) of a loop with torch's GradScaler, microbatch by microbatch."""
    model, train = plain_model(job, FACTS), job.train
    optimizer, data = plain_optimizer(model, train), Windows(FACTS)
    scaler = torch.amp.GradScaler("cpu", init_scale=loss_scale.FIRST, growth_interval=PATIENCE)
    losses, scales = [], []
    for step in range(1, STEPS + 1):
        ids = sample_ids(Position().positions(step, train.batch), job.run.seed, FACTS.samples)
        optimizer.zero_grad()
        total = 0.0
        for start in range(0, train.batch, train.microbatch):
            tokens, targets = data.batch(ids[start : start + train.microbatch])
            with torch.autocast("cpu", dtype=torch.float16):
                logits = model(input_ids=tokens, use_cache=False).logits
            flat = logits.float().flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(flat, targets.flatten(), reduction="sum")
            scaler.scale(loss / (train.batch * FACTS.context)).backward()
            total += float(loss.detach())
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(train, step, STEPS)
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip)
        scaler.step(optimizer)
        scaler.update()
        losses.append(total / (train.batch * FACTS.context))
        scales.append(scaler.get_scale())
    return losses, scales


def began(job, plan):
    data, hub = Windows(FACTS), Hub(job, FACTS)
    for name in plan.nodes:
        hub.start(name, data)
    hub.begin(plan, plan.nodes, checkpoint=0)
    return hub, data


def finished(hub, plan):
    outcome = hub.finish(plan.nodes)
    assert not hub.errors, hub.errors
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    return outcome


@pytest.mark.parametrize(("plan", "recompute"), [(TWO_BY_TWO, True), (THREE, False)], ids=["2x2", "3x1"])
def test_it_is_a_loop_with_torchs_grad_scaler(plan, recompute):
    job = job_of(recompute=recompute)
    wanted, scales = plain_losses(job)
    hub, _ = began(job, plan)
    outcome = finished(hub, plan)
    assert [outcome.losses[step] for step in range(1, STEPS + 1)] == pytest.approx(wanted, abs=5e-3)
    assert min(scales) < loss_scale.FIRST and max(scales[5:]) > min(scales), "it overflows, and grows again"
    assert {hub.trainers[name].state.loss_scale.scale for name in plan.nodes} == {scales[-1]}
    assert wanted[-1] < wanted[0] - 0.05 and sorted(outcome.evals) == [8, 16]
    assert outcome.warnings == [], "a step that overflows is nothing to warn of"


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_a_joiner_takes_the_scale_along(codec):
    """Whether it fetches the state of a member or follows one."""
    hub, data = began(job_of(codec=codec), LEFT)
    hub.start("c", data)
    hub.start("d", data)
    hub.follow = [control_pb2.Shadow(node="d", like="b", fetch=True)]
    wait_until(lambda: hub.trainers["a"].step >= 1)
    hub.change(LEFT, ["a", "b"], ["c", "d"])
    follower = lambda: hub.trainers["d"].follower  # noqa: E731
    wait_until(lambda: follower() is not None and follower().whole and follower()._said)
    more = Plan(pipelines=(("a", "b"), ("c", "d")), stages=LEFT.stages, microbatches=(3, 3))
    hub.follow = []
    hub.change(more, ["a", "b", "c", "d"])
    scales = {hub.trainers[name].state.loss_scale for name in "abcd"}
    outcome = finished(hub, more)
    assert len(scales) == 1 and scales.pop().dropped
    assert outcome.losses[STEPS] < outcome.losses[1]


def test_in_delta_mode_each_pipeline_has_its_own():
    hub, _ = began(job_of("delta", every=2, codec="int8"), TWO_BY_TWO)
    outcome = finished(hub, TWO_BY_TWO)
    scales = [hub.trainers[name].state.loss_scale for name in "abcd"]
    assert scales[0] == scales[1] and scales[2] == scales[3] and scales[0].scale < loss_scale.FIRST
    assert outcome.losses[STEPS] < outcome.losses[1] - 0.05 and outcome.warnings == []


def test_a_checkpoint_has_the_scale():
    """A run that begins with it goes on as the other did, bit for bit."""
    job = job_of(checkpoint=6)
    hub, data = began(job, LEFT)
    wanted = finished(hub, LEFT)
    again = Hub(job, FACTS)
    for name in LEFT.nodes:
        again.start(name, data)
    files = {file: content for (step, file), (content, _) in hub.shards.items() if step == 6}
    manifest = {"files": sorted(files), **next(meta for (step, _), (_, meta) in hub.shards.items() if step == 6)}
    assert manifest["loss_scale"] == [2.0**22, 0, 6]
    again.artifacts.update({f"checkpoint/6/{file}": content for file, content in files.items()})
    again.artifacts["checkpoint/6/manifest.json"] = json.dumps(manifest).encode()
    again.begin(LEFT, LEFT.nodes, checkpoint=6, step=6, cursor=6 * job.train.batch)
    got = finished(again, LEFT)
    assert got.losses == {step: loss for step, loss in wanted.losses.items() if step > 6}
    assert got.fingerprints == wanted.fingerprints
