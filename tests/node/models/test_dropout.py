"""Dropout that is a function of (seed, step, layer, sample): every shape, restart and recomputation drops the same."""

import functools

import pytest
import torch
from plain_loop import plain_model
from torch import nn
from torch.nn import functional
from windows import Windows, facts_of

from farflung.job.data.sampling import Position, sample_ids
from farflung.job.schema import Job
from farflung.node.models.decoders import families
from farflung.node.models.dropout import Draw, KeyedDropout, keep_mask
from farflung.node.models.factory import model_of
from farflung.node.models.stage import SequentialStage
from farflung.node.pipeline.island import Island
from farflung.node.state.optimizers.learning_rates import learning_rate
from farflung.proto.errors import FarflungError
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

pytestmark = pytest.mark.usefixtures("nobody_late")

STEPS, CONTEXT = 2, 16
FACTS = facts_of(samples=48, validation=4, context=CONTEXT, vocabulary=29, steps=STEPS)
DATA = Windows(FACTS)
DRAW = Draw(3, 7, (4, 9, 2))


def test_a_mask_is_of_its_sample_alone():
    values = torch.ones(3, 40, 50)
    mask = keep_mask(DRAW, 2, 1, values, 0.25)
    assert mask.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert abs(float((mask == 0).float().mean()) - 0.25) < 0.02
    other = keep_mask(Draw(3, 7, (2, 4)), 2, 1, values[:2], 0.25)
    assert torch.equal(other, mask[[2, 0]])
    heads = keep_mask(DRAW, 2, 1, torch.ones(3 * 40, 50), 0.25)
    assert torch.equal(heads.view(mask.shape), mask)
    for changed in (Draw(4, 7, DRAW.samples), Draw(3, 8, DRAW.samples)):
        assert not torch.equal(keep_mask(changed, 2, 1, values, 0.25), mask)
    for layer, count in ((3, 1), (2, 2)):
        assert not torch.equal(keep_mask(DRAW, layer, count, values, 0.25), mask)
    assert (mask[0] != mask[1]).float().mean() > 0.3, "samples have masks of their own"
    halves = keep_mask(DRAW, 2, 1, values, 0.5)
    assert torch.equal(halves[mask == 0], torch.zeros_like(halves[mask == 0])), "a higher rate drops more, not others"


def test_what_it_is_on_other_devices_and_versions():
    """Integer operations alone: the same everywhere. These numbers are the promise."""
    mask = keep_mask(Draw(1, 2, (3,)), 4, 5, torch.ones(1, 16), 0.5)
    assert (mask[0] > 0).int().tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1]


def test_other_random_layers_are_refused():
    with KeyedDropout(DRAW, 1):
        assert functional.dropout(torch.ones(3, 2), 0.0).eq(1).all()
        for draws in (nn.Dropout1d(0.5), nn.AlphaDropout(0.5)):
            with pytest.raises(FarflungError, match="draws random numbers in"):
                draws(torch.ones(3, 2, 2))
        query = torch.ones(3, 1, 4, 8)
        functional.scaled_dot_product_attention(query, query, query)
        with pytest.raises(FarflungError, match="draws random numbers in scaled_dot_product_attention"):
            functional.scaled_dot_product_attention(query, query, query, dropout_p=0.1)
        with pytest.raises(FarflungError, match="does not say which sample"):
            functional.dropout(torch.ones(4, 2), 0.5)


def job_of(family="gpt2", recompute=False, microbatch=2) -> Job:
    return Job.model_validate(
        {
            "run": {"seed": 3, "steps": STEPS},
            "model": {"family": family, "layers": 2, "width": 32, "heads": 4, "context": CONTEXT, "dropout": 0.2},
            "data": {"text": ["none.txt"]},
            "train": {
                "batch": 4,
                "microbatch": microbatch,
                "optimizer": "sgd",
                "learning_rate": 0.1,
                "eval_every": 0,
                "recompute": recompute,
            },
            "updates": {"block": 1024},
            "checkpoint": {"every": 0},
        }
    )


@functools.cache
def plain_losses(family: str) -> list[float]:
    """A loop over the whole model, sample by sample: each sample's masks from its own key, layer by layer."""
    job = job_of(family)
    model, train = plain_model(job, FACTS), job.train
    model.config._attn_implementation = "eager"
    optimizer = torch.optim.SGD(model.parameters(), train.learning_rate)
    losses = []
    for step in range(1, STEPS + 1):
        ids = sample_ids(Position().positions(step, train.batch), job.run.seed, FACTS.samples)
        total = torch.zeros(())
        for sample in ids:
            tokens, targets = DATA.batch([sample])
            draw = Draw(job.run.seed, step, (sample,))
            hooks = []
            for number, block in enumerate(blocks_of(model), 1):
                mode = KeyedDropout(draw, number)
                hooks.append(block.register_forward_pre_hook(lambda *_, mode=mode: mode.__enter__() and None))
                hooks.append(block.register_forward_hook(lambda *_, mode=mode: mode.__exit__(None, None, None)))
            with KeyedDropout(draw, 0):
                logits = model(input_ids=tokens, use_cache=False).logits
            total = total + functional.cross_entropy(logits[0], targets[0], reduction="sum")
            for hook in hooks:
                hook.remove()
        loss = total / (train.batch * CONTEXT)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(train, step, STEPS)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def blocks_of(model) -> list[nn.Module]:
    return list(model.transformer.h if hasattr(model, "transformer") else model.model.layers)


def losses_of(job: Job, cuts, shares, island=None) -> list[float]:
    hub = Hub(job, FACTS)
    pipelines = tuple(tuple(f"n{d}{s}" for s in range(len(cuts))) for d in range(len(shares)))
    plan = Plan(pipelines=pipelines, stages=cuts, microbatches=shares, schedule="1f1b")
    for name in plan.nodes:
        hub.start(name, DATA, island if name == "n00" else None)
    hub.begin(plan, plan.nodes, checkpoint=0)
    outcome = hub.finish(plan.nodes)
    assert not hub.errors, hub.errors
    return [outcome.losses[step] for step in range(1, STEPS + 1)]


@pytest.mark.parametrize(
    ("family", "cuts", "shares", "recompute", "microbatch"),
    [
        ("gpt2", ((0, 3),), (2,), False, 2),
        ("gpt2", ((0, 0), (1, 1), (2, 3)), (1, 1), True, 2),
        ("gpt2", ((0, 1), (2, 3)), (1,), False, 4),
        ("llama", ((0, 1), (2, 3)), (1, 1), True, 2),
    ],
)
def test_every_shape_has_the_losses_of_one_process(family, cuts, shares, recompute, microbatch):
    before = torch.get_rng_state()
    job = job_of(family, recompute, microbatch)
    wanted = plain_losses(family)
    assert losses_of(job, cuts, shares) == pytest.approx(wanted, abs=1e-5)
    assert torch.equal(torch.get_rng_state(), before), "no generator of torch's is used"


def test_an_island_drops_what_one_device_drops():
    job = job_of()
    with Island("cpu", 2) as island:
        island.measure()
        assert losses_of(job, ((0, 3),), (2,), island) == pytest.approx(plain_losses("gpt2"), abs=1e-5)


def test_an_evaluation_drops_nothing_and_training_has_to_know_its_samples():
    definition = model_of(job_of(), FACTS)
    stage = definition.build(0, 3)
    definition.initialise(stage, 1)
    tokens, _ = DATA.batch([0])
    stage.eval()
    assert torch.equal(stage(tokens), stage(tokens))
    stage.train()
    with pytest.raises(RuntimeError, match="has no draw"):
        stage(tokens)


def test_a_model_of_ones_own_may_drop():
    layers = [[("0", nn.Linear(4, 8)), ("1", nn.Dropout(0.5))], [("2", nn.Linear(8, 2))]]
    stage = SequentialStage(0, 1, 2, layers, lambda outputs, targets: outputs.sum()).train()
    inputs = torch.randn(3, 4)
    stage.draw = DRAW
    whole = stage(inputs)
    assert torch.equal(whole, stage(inputs))
    stage.draw = DRAW.part(1, 3)
    torch.testing.assert_close(stage(inputs[1:]), whole[1:])
    assert not torch.equal(whole, stage.eval()(inputs))


def test_a_family_without_dropout_says_so():
    class Bare:
        model_type = "bare"

    with pytest.raises(FarflungError, match="'bare' has no dropout"):
        families._with_dropout(Bare(), 0.1)
