"""Fine-tuning a classifier over stages and pipelines gives the losses and weights of a plain loop."""

import hashlib

import numpy as np
import pytest
import torch
import transformers
from plain_loop import plain_optimizer
from small_classifiers import job_of, saved
from windows import facts_of

from farflung.job.data.labelled import LAYOUT, kinds_of, labelled, texts_of
from farflung.job.data.marks import MARKED, targets_of
from farflung.job.data.sampling import Position, sample_ids
from farflung.job.schema import Job
from farflung.node.data.dataset import Tokens
from farflung.node.state.optimizers.learning_rates import learning_rate
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

pytestmark = pytest.mark.usefixtures("nobody_late")

STEPS, CONTEXT, SAMPLES, HELD = 3, 12, 20, 5


def rows_of() -> np.ndarray:
    draw = np.random.default_rng(4)
    rows = []
    for _ in range(SAMPLES + HELD):
        length, first = int(draw.integers(2, CONTEXT + 1)), int(draw.integers(1, CONTEXT + 1))
        types = (np.arange(length) >= first).astype(int).tolist()
        rows.append(labelled(draw.integers(5, 67, length).tolist(), types, int(draw.integers(3)), CONTEXT, 1))
    return np.stack(rows)


def data_of(rows, folder):
    raw = {"data/tokens": rows.astype("<u4").tobytes(), "data/counts": np.ones(len(rows), "<u4").tobytes()}
    raw |= {f"model/{path.name}": path.read_bytes() for path in folder.iterdir()}
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in raw.items()}
    facts = facts_of(SAMPLES, HELD, CONTEXT, 67, STEPS).model_copy(
        update={
            "token_dtype": MARKED, "packed": True, "layout": LAYOUT, "trained": SAMPLES, "artifacts": digests,
            "tokens_digest": digests["data/tokens"],
        }
    )  # fmt: skip
    return facts, raw, Tokens(facts, lambda name, offset=0, length=None: raw[name][offset:][:length])


def outputs(model, rows):
    kinds = torch.from_numpy(kinds_of(rows))
    types = {"token_type_ids": (kinds - 1).clamp(min=0)} if model.config.model_type == "bert" else {}
    logits = model(torch.from_numpy(texts_of(rows)), attention_mask=(kinds > 0).long(), **types).logits
    return logits, torch.from_numpy(targets_of(rows)[:, -1])


def plain(job, facts, rows, folder):
    """(loss of each step, that of what is held out, the weights) of one process."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    optimizer, losses = plain_optimizer(model, job.train), []
    for step in range(1, STEPS + 1):
        ids = sample_ids(Position().positions(step, job.train.batch), job.run.seed, facts.samples)
        loss = torch.nn.functional.cross_entropy(*outputs(model, rows[np.array(ids)]))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), job.train.clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(job.train, step, facts.steps)
        optimizer.step()
        losses.append(float(loss.detach()))
    held = torch.nn.functional.cross_entropy(*outputs(model, rows[SAMPLES:]))
    return losses, float(held.detach()), dict(model.named_parameters())


@pytest.mark.parametrize(
    ("family", "shares", "stages"),
    [
        ("bert", (3, 3), ((0, 1), (2, 4))),
        ("roberta", (6,), ((0, 0), (1, 3), (4, 4))),
        ("llama", (2, 4), ((0, 2), (3, 4))),
    ],
)
def test_equal_to_a_plain_loop(tmp_path, family, shares, stages):
    saved(family, tmp_path)
    words = job_of(tmp_path, batch=12, optimizer="sgd", learning_rate=0.1, eval_every=0).model_dump()
    words |= {"run": {"seed": 3, "steps": STEPS}, "updates": {"block": 256}, "checkpoint": {"every": 0}}
    job = Job.model_validate(words)
    rows = rows_of()
    if family == "roberta":
        rows = np.stack([labelled(texts_of(row[None])[0].tolist(), [0] * CONTEXT, 2, CONTEXT, 1) for row in rows])
    facts, raw, data = data_of(rows, tmp_path)
    hub = Hub(job, facts, raw)
    pipelines = tuple(tuple(f"n{d}{s}" for s in range(len(stages))) for d in range(len(shares)))
    plan = Plan(pipelines=pipelines, stages=stages, microbatches=shares, schedule="1f1b")
    for name in plan.nodes:
        hub.start(name, data)
    hub.begin(plan, plan.nodes, checkpoint=0)
    outcome = hub.finish(plan.nodes)
    assert not hub.errors, hub.errors
    losses, held, weights = plain(job, facts, rows, tmp_path)
    assert [outcome.losses[step] for step in range(1, STEPS + 1)] == pytest.approx(losses, abs=1e-5)
    assert outcome.evals == {STEPS: pytest.approx(held, abs=1e-5)}
    for trainer in hub.trainers.values():
        for model in trainer.training.state.models:
            for name, value in model.named_parameters():
                torch.testing.assert_close(value.detach(), weights[name], atol=1e-5, rtol=0)
