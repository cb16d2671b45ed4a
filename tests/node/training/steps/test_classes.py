"""Adapters and the head of a classifier in any shape: the losses and weights of a plain loop with peft."""

import hashlib

import numpy as np
import peft
import pytest
import torch
import transformers
from plain_loop import plain_optimizer
from small_classifiers import NAMES, job_of, keywords_for, saved
from windows import facts_of

from farflung.job.data.labelled import LAYOUT, kinds_of, labelled, texts_of
from farflung.job.data.marks import MARKED
from farflung.job.data.sampling import Position, sample_ids
from farflung.node.data.dataset import Tokens
from farflung.node.models.factory import model_of
from farflung.node.models.lora import is_adapter
from farflung.node.state.optimizers.learning_rates import learning_rate
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

pytestmark = [
    pytest.mark.usefixtures("nobody_late"),
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning"),  # peft reads it
]

STEPS, SAMPLES, CONTEXT = 5, 16, 12
TWO_STAGES = Plan(pipelines=(("a", "b"),), stages=((0, 0), (1, 2)), microbatches=(4,))
BOTH = Plan(pipelines=(("a", "b"), ("c", "d")), stages=((0, 1), (2, 2)), microbatches=(3, 1))


def rows():
    """Texts and pairs of texts of different lengths; the class follows from the first token."""
    draw, found = np.random.default_rng(5), []
    for _ in range(SAMPLES):
        count = int(draw.integers(3, CONTEXT + 1))
        tokens = draw.integers(5, 67, count)
        kinds = np.arange(count) >= draw.integers(2, count + 1)
        found.append(labelled(tokens, kinds.astype(int), int(tokens[0]) % len(NAMES), CONTEXT, 1))
    return np.stack(found)


def hub_of(job, folder, found):
    raw = {"data/tokens": found.astype("<u4").tobytes(), "data/counts": np.ones(SAMPLES, "<u4").tobytes()}
    raw |= {f"model/{path.name}": path.read_bytes() for path in folder.iterdir()}
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in raw.items()}
    facts = facts_of(SAMPLES, 0, CONTEXT, 67, STEPS).model_copy(
        update={
            "token_dtype": MARKED, "packed": True, "trained": SAMPLES, "artifacts": digests, "layout": LAYOUT,
            "tokens_digest": digests["data/tokens"],
        }
    )  # fmt: skip
    data = Tokens(facts, lambda name, offset=0, length=None: raw[name][offset:][:length])
    return Hub(job, facts, raw), data


def plain(job, folder, found):
    """(loss of each step, the trained parameters by our names) of one process with `peft`."""
    lora, definition, train = job.model.lora, model_of(job, None), job.train
    base = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    config = peft.LoraConfig(
        task_type="SEQ_CLS", r=lora.rank, lora_alpha=lora.alpha, use_dora=lora.dora, target_modules=lora.targets,
        modules_to_save=list(definition.whole),
    )  # fmt: skip
    model = peft.get_peft_model(base, config).eval()  # eval: no dropout of the base's either
    trained = {
        name.removeprefix("base_model.model.").replace(".modules_to_save.default", ""): one
        for name, one in model.named_parameters()
        if one.requires_grad
    }
    assert set(trained) == set(definition.shapes)
    with torch.no_grad():
        for name, one in trained.items():
            if is_adapter(name) and "magnitude" not in name:
                one.copy_(definition.initial(name, job.run.seed))
    optimizer, losses = plain_optimizer(model, train), []
    for step in range(1, STEPS + 1):
        ids = sample_ids(Position().positions(step, train.batch), job.run.seed, SAMPLES)
        here, classes = found[ids], torch.tensor([int(found[one][-1]) & 3 for one in ids])
        kinds = torch.from_numpy(kinds_of(here))
        logits = model(torch.from_numpy(texts_of(here)), **keywords_for(base, kinds)).logits
        loss = torch.nn.functional.cross_entropy(logits, classes)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(trained.values()), train.clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(train, step, STEPS)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, trained


@pytest.mark.parametrize(
    ("family", "plan", "lora"),
    [
        ("bert", TWO_STAGES, {"rank": 4}),
        ("deberta-v2 (v3)", BOTH, {"rank": 2, "targets": ["query_proj", "dense"]}),
        ("llama", BOTH, {"rank": 4, "dora": True}),
    ],
)
def test_equal_to_a_plain_loop_with_peft(tmp_path, family, plan, lora):
    saved(family, tmp_path)
    found = rows()
    train = {"batch": 8, "learning_rate": 0.02, "weight_decay": 0.1, "eval_every": 0, "recompute": plan is BOTH}
    job = job_of(tmp_path, lora, **train)
    job = job.model_copy(update={"run": job.run.model_copy(update={"seed": 3, "steps": STEPS})})
    hub, data = hub_of(job, tmp_path, found)
    for name in plan.nodes:
        hub.start(name, data)
    hub.begin(plan, plan.nodes, checkpoint=0)
    outcome = hub.finish(plan.nodes)
    assert not hub.errors, hub.errors
    wanted, trained = plain(job, tmp_path, found)
    assert [outcome.losses[step] for step in range(1, STEPS + 1)] == pytest.approx(wanted, abs=1e-5)
    assert abs(wanted[-1] - wanted[0]) > 0.02
    for trainer in hub.trainers.values():
        for model in trainer.training.state.models:
            for name, value in model.named_parameters():
                if value.requires_grad:
                    torch.testing.assert_close(value.detach(), trained[name].detach(), atol=1e-4, rtol=0)
