"""Loss and gradient of samples of which some tokens train, in several documents, are those of a plain loop."""

import numpy as np
import pytest
import torch
from marked_rows import documents, rows_of, tokens_of
from plain_loop import plain_model, plain_optimizer
from torch.nn import functional
from windows import facts_of

from farflung.job.data.marks import FIRST, IGNORED, TRAINED, marked, places_of, targets_of
from farflung.job.data.sampling import Position, sample_ids
from farflung.job.schema import Job
from farflung.node.state.optimizers.learning_rates import learning_rate
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

pytestmark = pytest.mark.usefixtures("nobody_late")

STEPS, CONTEXT = 2, 16
CUTS = {1: ((0, 3),), 2: ((0, 1), (2, 3)), 3: ((0, 0), (1, 1), (2, 3))}


def job_of(family: str) -> Job:
    """SGD: its weights after a step are as near to those of a plain loop as the gradient is."""
    return Job.model_validate(
        {
            "run": {"seed": 3, "steps": STEPS},
            "model": {"family": family, "layers": 2, "width": 32, "heads": 4, "context": CONTEXT},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 12, "microbatch": 2, "optimizer": "sgd", "learning_rate": 0.1, "eval_every": 0},
            "updates": {"block": 1024},
            "checkpoint": {"every": 0},
        }
    )


def test_marks_say_targets_and_places():
    documents = [marked([5, 6, 7], [1, 0, 1]), marked([8, 9], [0, 1]), marked([0, 0], [0, 0])]
    row = np.concatenate(documents)
    assert targets_of(row[None])[0].tolist() == [IGNORED, 7, IGNORED, 9, IGNORED, IGNORED]
    assert places_of(row[None])[0].tolist() == [0, 1, 2, 0, 1, 0]
    assert not row[0] & TRAINED, "nothing predicts the first token of a document"


def made(packed: bool):
    facts = facts_of(samples=48, validation=4, context=CONTEXT, vocabulary=29, steps=STEPS)
    rows = rows_of(documents(1, 400, 9 if packed else CONTEXT + 1, 29), CONTEXT + 1, packed)[:52]
    assert len(rows) == 52
    return tokens_of(facts, rows, packed)


def plain(job, facts, rows):
    """Each document by itself through the whole model: summed losses over the step's trained tokens."""
    model, train = plain_model(job, facts), job.train
    optimizer = plain_optimizer(model, train)
    losses = []
    for step in range(1, STEPS + 1):
        ids = sample_ids(Position().positions(step, train.batch), job.run.seed, facts.samples)
        total, count = torch.zeros(()), 0
        for row in rows[np.array(ids)]:
            for document in np.split(row, np.flatnonzero(row & FIRST)[1:]):
                values = torch.from_numpy((document & (FIRST - np.uint32(1))).astype(np.int64))
                trains = torch.from_numpy((document & TRAINED).astype(np.int64) > 0)[1:]
                if len(values) > 1 and trains.any():
                    logits = model(input_ids=values[None], use_cache=False).logits[0, :-1]
                    total = total + functional.cross_entropy(logits[trains], values[1:][trains], reduction="sum")
                    count += int(trains.sum())
        loss = total / count
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(train, step, facts.steps)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, {name: value.detach() for name, value in model.named_parameters()}


@pytest.mark.parametrize(
    ("stages", "shares", "family", "packed"),
    [
        (1, (6,), "llama", True),
        (2, (6,), "llama", True),
        (2, (3, 3), "llama", True),
        (3, (1, 5), "gpt2", True),
        (2, (3, 3), "llama", False),
    ],
)
def test_equal_to_a_plain_loop_over_documents(stages, shares, family, packed):
    """Pipelines have different numbers of trained tokens, and a middle stage has to know where documents begin."""
    job = job_of(family)
    facts, data = made(packed)
    counts = [data.trained(sample_ids(range(at, at + 6), job.run.seed, facts.samples)) for at in (0, 6)]
    assert counts[0] != counts[1]
    hub = Hub(job, facts)
    pipelines = tuple(tuple(f"n{d}{s}" for s in range(stages)) for d in range(len(shares)))
    plan = Plan(pipelines=pipelines, stages=CUTS[stages], microbatches=shares, schedule="1f1b")
    for name in plan.nodes:
        hub.start(name, data)
    hub.begin(plan, plan.nodes, checkpoint=0)
    outcome = hub.finish(plan.nodes)
    assert not hub.errors, hub.errors
    rows = data.rows(range(facts.samples + facts.validation_samples))
    wanted, weights = plain(job, facts, rows)
    assert [outcome.losses[step] for step in range(1, STEPS + 1)] == pytest.approx(wanted, abs=1e-5)
    assert set(outcome.evals) == {STEPS}
    for trainer in hub.trainers.values():
        for model in trainer.training.state.models:
            for name, value in model.named_parameters():
                torch.testing.assert_close(value.detach(), weights[name], atol=1e-5, rtol=0)


def test_a_mixture_is_drawn_as_its_weights_say():
    job = job_of("llama")
    facts, data = made(True)
    facts = facts.model_copy(update={"mix": [(8, 500), (40, 500)]})
    drawn = []

    class Watched(type(data)):
        def placed(self, ids):
            drawn.extend(one for one in ids if one < facts.samples)
            return super().placed(ids)

    data.__class__ = Watched
    hub = Hub(job, facts)
    plan = Plan(pipelines=(("a",),), stages=CUTS[1], microbatches=(6,), schedule="1f1b")
    hub.start("a", data)
    hub.begin(plan, plan.nodes, checkpoint=0)
    hub.finish(plan.nodes)
    assert not hub.errors, hub.errors
    assert sorted(drawn) == sorted(sample_ids(range(STEPS * 12), job.run.seed, facts.drawn))
    assert sum(one < 8 for one in drawn) > 8
