"""Evaluation sets beside what is held out: each has the loss of the whole model on its rows, wherever it is cut."""

import numpy as np
import pytest
import torch
from marked_rows import documents, rows_of, tokens_of
from plain_loop import plain_model
from windows import Windows, facts_of

from farflung.job.data.facts import Facts
from farflung.job.schema import Job
from farflung.node.data.eval_sets import EVAL_COUNTS, EVAL_TOKENS, WithSets, with_sets
from farflung.node.training.steps.milestones import evaluated
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

pytestmark = pytest.mark.usefixtures("nobody_late")

CONTEXT, VOCABULARY = 8, 29
JOB = Job.model_validate(
    {
        "run": {"seed": 3, "steps": 1},
        "model": {"family": "llama", "layers": 2, "width": 16, "heads": 2, "context": CONTEXT},
        "data": {"text": ["none.txt"]},
        "eval": {"sets": [{"name": "plain", "text": ["none.txt"]}, {"name": "talks", "chat": ["none.jsonl"]}]},
        "train": {"batch": 8, "microbatch": 2, "eval_every": 0},
        "checkpoint": {"every": 0},
    }
)
COUNTS = (5, 3)


def facts_and_data() -> tuple[Facts, WithSets, np.ndarray]:
    """Training data of plain windows, and marked rows with several documents to evaluate on."""
    facts = facts_of(samples=16, validation=3, context=CONTEXT, vocabulary=VOCABULARY, steps=1)
    rows = rows_of(documents(2, 60, 5, VOCABULARY), CONTEXT + 1, True)[: sum(COUNTS)]
    alone, marked = tokens_of(facts.model_copy(update={"samples": 0, "validation_samples": len(rows)}), rows, True)
    artifacts = {EVAL_TOKENS: alone.tokens_digest, EVAL_COUNTS: alone.artifacts["data/counts"]}
    sets = list(zip(("plain", "talks"), COUNTS, strict=True))
    changed = {"sets": sets, "sets_dtype": alone.token_dtype, "sets_packed": True, "artifacts": artifacts}
    facts = facts.model_copy(update=changed)
    raw = {EVAL_TOKENS: rows.astype("<u4").tobytes(), EVAL_COUNTS: marked._counts.astype("<u4").tobytes()}

    def fetch(name: str, offset: int = 0, length: int | None = None) -> bytes:
        return raw[name][offset : None if length is None else offset + length]

    data = with_sets(Windows(facts), facts, fetch, None)
    assert isinstance(data, WithSets)
    return facts, data, rows


def test_batches_are_of_one_set_each():
    facts, data, _ = facts_and_data()
    chunks = evaluated(facts, 2)
    assert [number for number, _ in chunks] == [0, 0, 1, 1, 1, 2, 2]
    assert [one for _, ids in chunks for one in ids] == list(range(16, 16 + 3 + 8))
    tokens, targets, places = data.placed(chunks[-1][1])
    assert tokens.shape == (1, CONTEXT) and places is not None and data.placed([0])[2] is None
    assert data.trained(chunks[-1][1]) == int((targets >= 0).sum()) and data.trained([0, 1]) is None
    assert with_sets(data, facts.model_copy(update={"sets": []}), None, None) is data


@pytest.mark.parametrize("shares", [(4,), (3, 1)])
def test_the_losses_are_those_of_the_whole_model(shares):
    """In the middle stage nothing but an evaluation needs to know where documents begin."""
    facts, data, _ = facts_and_data()
    hub = Hub(JOB, facts)
    pipelines = tuple(tuple(f"n{d}{s}" for s in range(3)) for d in range(len(shares)))
    plan = Plan(pipelines=pipelines, stages=((0, 0), (1, 1), (2, 3)), microbatches=shares, schedule="1f1b")
    for name in plan.nodes:
        hub.start(name, data)
    hub.begin(plan, plan.nodes, checkpoint=0)
    outcome = hub.finish(plan.nodes)
    assert not hub.errors, hub.errors
    model = plain_model(JOB, facts).eval()
    weights = {
        name: value for t in hub.trainers.values() for name, value in t.training.state.models[0].named_parameters()
    }
    model.load_state_dict(weights, strict=False)
    begin = facts.samples
    for number, count in enumerate((facts.validation_samples, *COUNTS)):
        total, trained = 0.0, 0
        for sample in range(begin, begin + count):
            tokens, targets, places = data.placed([sample])
            keywords = {} if places is None else {"position_ids": places}
            with torch.no_grad():
                logits = model(input_ids=tokens, use_cache=False, **keywords).logits[0]
            total += float(torch.nn.functional.cross_entropy(logits, targets[0], reduction="sum", ignore_index=-100))
            trained += int((targets >= 0).sum())
        found = (outcome.evals[1] * trained, trained) if number == 0 else outcome.sets[1][number]
        assert found[1] == trained and found[0] == pytest.approx(total, abs=1e-4)
        begin += count
