"""DPO over stages and pipelines gives the losses and adapters of a plain loop with peft and its base."""

import hashlib

import numpy as np
import pytest
import torch
from plain_loop import plain_optimizer
from plain_lora import plain_peft, save_base
from windows import facts_of

from farflung.job.data.marks import FIRST, MARKED, TRAINED, marked
from farflung.job.data.sampling import Position, sample_ids
from farflung.job.schema import Job
from farflung.node.data.dataset import Tokens
from farflung.node.models.dropout import Draw
from farflung.node.models.factory import model_of
from farflung.node.models.profiling.cost import profile
from farflung.node.state.optimizers.learning_rates import learning_rate
from farflung.scheduler import Plan
from farflung.scheduler.workloads.jobs import workload_of
from farflung.testing.loopback import Hub

pytestmark = [
    pytest.mark.usefixtures("nobody_late"),
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning"),  # peft reads it
]

STEPS, CONTEXT, SAMPLES, HELD, BETA = 3, 16, 16, 3, 0.5


def job_of(folder, recompute=False, dropout=0.0):
    return Job.model_validate(
        {
            "run": {"seed": 3, "steps": STEPS},
            "model": {"pretrained": str(folder), "context": CONTEXT, "lora": {"rank": 4, "dropout": dropout}},
            "data": {"preferences": ["none"]},
            "train": {
                "task": "dpo", "dpo_beta": BETA, "batch": 8, "microbatch": 2, "optimizer": "sgd", "eval_every": 0,
                "learning_rate": 0.5, "recompute": recompute,
            },
            "updates": {"block": 256},
            "checkpoint": {"every": 0},
        }
    )  # fmt: skip


def documents():
    """(chosen, rejected) of each sample: a common prompt, which does not train, and two answers."""
    draw, found = np.random.default_rng(4), []
    for _ in range(SAMPLES + HELD):
        prompt = draw.integers(0, 29, int(draw.integers(1, 4)))
        pair = []
        for _ in range(2):
            tokens = np.concatenate([prompt, draw.integers(0, 29, int(draw.integers(1, CONTEXT // 2 - 3)))])
            pair.append(marked(tokens, np.arange(len(tokens)) >= len(prompt)))
        found.append(pair)
    return found


def data_of(folder, pairs):
    rows = np.zeros((len(pairs), CONTEXT + 1), np.uint32)
    for row, pair in zip(rows, pairs, strict=True):
        for begin, one in zip((0, CONTEXT // 2), pair, strict=True):
            row[begin : begin + len(one)] = one
            row[begin + len(one)] |= FIRST
    raw = {"data/tokens": rows.astype("<u4").tobytes(), "data/counts": np.ones(len(rows), "<u4").tobytes()}
    raw |= {f"model/{path.name}": path.read_bytes() for path in folder.iterdir()}
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in raw.items()}
    facts = facts_of(SAMPLES, HELD, CONTEXT, 29, STEPS).model_copy(
        update={
            "token_dtype": MARKED, "packed": True, "trained": SAMPLES, "artifacts": digests,
            "tokens_digest": digests["data/tokens"],
        }
    )  # fmt: skip
    return facts, raw, Tokens(facts, lambda name, offset=0, length=None: raw[name][offset:][:length])


def likelihood(model, document):
    """The log of the answer's probability behind its prompt, alone."""
    tokens = torch.from_numpy((document & (FIRST - np.uint32(1))).astype(np.int64))
    trains = torch.from_numpy((document & TRAINED) > 0)[1:]
    logs = model(input_ids=tokens[None], use_cache=False).logits[0, :-1].log_softmax(-1)
    return logs[torch.arange(len(tokens) - 1), tokens[1:]][trains].sum()


def loss_of(model, pairs):
    losses = []
    for chosen, rejected in pairs:
        with torch.no_grad(), model.disable_adapter():
            base = likelihood(model, chosen) - likelihood(model, rejected)
        margin = likelihood(model, chosen) - likelihood(model, rejected) - base
        losses.append(-torch.nn.functional.logsigmoid(BETA * margin))
    return torch.stack(losses).mean()


def plain(job, facts, pairs):
    """(loss of each step, that of what is held out, the adapters) of one process."""
    model = plain_peft(job, facts)
    optimizer, losses = plain_optimizer(model, job.train), []
    for step in range(1, STEPS + 1):
        ids = sample_ids(Position().positions(step, job.train.batch), job.run.seed, facts.samples)
        loss = loss_of(model, [pairs[one] for one in ids])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([one for one in model.parameters() if one.requires_grad], job.train.clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(job.train, step, facts.steps)
        optimizer.step()
        losses.append(float(loss.detach()))
    held = float(loss_of(model, pairs[SAMPLES:]).detach())
    return losses, held, {name: one for name, one in model.named_parameters() if one.requires_grad}


def run(job, folder, pairs, plan):
    facts, raw, data = data_of(folder, pairs)
    hub = Hub(job, facts, raw)
    for name in plan.nodes:
        hub.start(name, data)
    hub.begin(plan, plan.nodes, checkpoint=0)
    outcome = hub.finish(plan.nodes)
    assert not hub.errors, hub.errors
    return facts, hub, outcome


ONE = Plan(pipelines=(("a",),), stages=((0, 1),), microbatches=(4,))
BOTH = Plan(pipelines=(("a", "b"), ("c", "d")), stages=((0, 0), (1, 1)), microbatches=(3, 1))


@pytest.mark.parametrize(("family", "plan"), [("llama", BOTH), ("gpt2", ONE)])
def test_equal_to_a_plain_loop(tmp_path, family, plan):
    """Also where activations are computed again, and of a family that can't tell a sample's documents apart."""
    folder, pairs = save_base(tmp_path / "base", family, 29), documents()
    job = job_of(folder, recompute=plan is BOTH)
    facts, hub, outcome = run(job, folder, pairs, plan)
    losses, held, adapters = plain(job, facts, pairs)
    assert losses[0] == pytest.approx(float(np.log(2)), abs=1e-5), "policy and reference begin as one"
    assert [outcome.losses[step] for step in range(1, STEPS + 1)] == pytest.approx(losses, abs=1e-5)
    assert outcome.evals == {STEPS: pytest.approx(held, abs=1e-5)}
    for trainer in hub.trainers.values():
        for model in trainer.training.state.models:
            for name, value in model.named_parameters():
                if value.requires_grad:
                    torch.testing.assert_close(value.detach(), adapters[f"base_model.model.{name}"], atol=1e-5, rtol=0)


def test_the_reference_drops_nothing_and_without_pairs_it_is_a_language_model(tmp_path):
    folder = save_base(tmp_path / "base", "llama", 29)
    definition = model_of(job_of(folder, dropout=0.5), None)
    stage = definition.build(0, 1).train()
    torch.manual_seed(0)
    for parameter in stage.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    ids, places = torch.randint(0, 29, (2, CONTEXT)), torch.zeros(2, CONTEXT, dtype=torch.long)
    stage.draw = Draw(1, 1, (3, 4))
    policy, reference = stage(ids, places).split(CONTEXT, 1)
    with torch.no_grad():
        stage.eval()
        again = stage(ids, places)
        torch.testing.assert_close(again[:, CONTEXT:], reference)
        assert not torch.allclose(again[:, :CONTEXT], policy.detach(), atol=1e-3)
        assert not torch.allclose(again[:, :CONTEXT], reference, atol=1e-3)
        torch.testing.assert_close(stage(ids[:, : CONTEXT // 2]), again[:, : CONTEXT // 2], atol=1e-5, rtol=0)


def test_a_plan_counts_both_passes(tmp_path):
    folder = save_base(tmp_path / "base", "llama", 29)
    job = job_of(folder)
    plain_job = job.model_copy(update={"train": job.train.model_copy(update={"task": "language"})})
    layers, language = (profile(one, 29).layers for one in (job, plain_job))
    assert layers[0].activation_elements_per_sample == 2 * language[0].activation_elements_per_sample
    assert all(
        1.3 < one.flops_per_sample / other.flops_per_sample < 1.5 for one, other in zip(layers, language, strict=True)
    )
    planned = workload_of(job.model_dump(exclude_none=True)).layers
    assert [one.activation for one in planned[:-1]] == [one.activation_elements_per_sample for one in layers[:-1]]
    assert [3 * one.flops for one in planned] == pytest.approx([one.flops_per_sample for one in layers], rel=0.1)
    assert [one.working for one in planned] == [one.working_elements_per_sample for one in layers]
