"""The balance loss of routers: what each stage adds for its own blocks is that of one process."""

import pytest
import torch
from small_models import EXPERTS, Case, job_of, saved
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func
from windows import Windows, facts_of

from farflung.job.schema import Job
from farflung.node.models.factory import model_of
from farflung.node.models.stage import Pass
from farflung.node.models.weights.pretrained import initial_weights, weights_of
from farflung.proto.errors import FarflungError
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

IDS = torch.randint(0, 67, (2, 17), generator=torch.Generator().manual_seed(5))
INPUTS, TARGETS = IDS[:, :-1].contiguous(), IDS[:, 1:].contiguous()
WEIGHT = 0.3


def with_loss(job, weight, recompute=False):
    words = {**job.model_dump(), "train": {**job.train.model_dump(), "recompute": recompute}}
    words["model"]["router_loss"] = weight
    return Job.model_validate(words)


def gradients_of_stages(job, ends):
    """Of two stages whose passes meet as a pipeline's do, for a loss that is the mean over tokens."""
    definition, weights, scale = model_of(job, None), weights_of(job, None), 1 / TARGETS.numel()
    passes, first, inputs, found = [], 0, INPUTS, {}
    for end in ends:
        stage = definition.build(first, end).train()
        stage.load_state_dict(initial_weights(definition, [name for name, _ in stage.named_parameters()], 0, weights))
        passes.append((stage, Pass(stage, inputs, TARGETS)))
        inputs, first = passes[-1][1].output.detach().clone(), end + 1
    gradient = torch.tensor(scale)
    for stage, made in reversed(passes):
        gradient = made.backward(gradient, scale)
        found |= {name: one.grad for name, one in stage.named_parameters()}
    return found


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    "case", [Case("mixtral", {"num_local_experts": 4}), Case("qwen3_moe", {**EXPERTS, "head_dim": 8})], ids=str
)
def test_stages_add_the_mean_over_layers(tmp_path, case, recompute):
    model = saved(case, tmp_path)
    found = gradients_of_stages(with_loss(job_of(tmp_path), WEIGHT, recompute), (2, 4))
    out = model(INPUTS, output_router_logits=True)
    balance = sum(load_balancing_loss_func((one,), 4, 2) for one in out.router_logits) / 3
    loss = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), TARGETS.flatten())
    (loss + WEIGHT * balance).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-6)
    plain = gradients_of_stages(with_loss(job_of(tmp_path), 0.0), (2, 4))
    router = next(name for name in found if name.endswith("layers.0.mlp.gate.weight"))
    assert not torch.allclose(found[router], plain[router], atol=1e-5)


def test_for_one_layer_it_is_the_loss_of_transformers_which_config_json_may_ask_for(tmp_path):
    changes = {
        "num_local_experts": 4,
        "num_hidden_layers": 1,
        "output_router_logits": True,
        "router_aux_loss_coef": 0.2,
    }
    model = saved(Case("mixtral", changes), tmp_path)
    found = gradients_of_stages(with_loss(job_of(tmp_path), None), (1, 2))
    out = model(INPUTS, labels=INPUTS, output_router_logits=True)
    loss = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), TARGETS.flatten())
    (loss + 0.2 * out.aux_loss).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_a_family_without_one_is_refused(tmp_path):
    saved(Case("gpt2"), tmp_path)
    with pytest.raises(FarflungError, match="'gpt2' has no balance loss of its routers"):
        model_of(with_loss(job_of(tmp_path), 0.1), None)


def test_training_weighs_it_alike_on_every_stage(tmp_path):
    """The gradients of a step, computed by the nodes of one and of two stages."""
    saved(Case("mixtral", {"num_local_experts": 4}), tmp_path)
    words = with_loss(job_of(tmp_path), WEIGHT).model_dump(exclude_unset=True)
    words |= {"run": {"seed": 3, "steps": 2}, "checkpoint": {"every": 0}}
    words["train"] |= {"batch": 4, "microbatch": 2, "eval_every": 0, "clip": 0}
    words["train"] |= {"optimizer": "sgd", "learning_rate": 1.0}
    words["model"]["context"] = 16
    job, files = Job.model_validate(words), {f"model/{one.name}": one.read_bytes() for one in tmp_path.iterdir()}
    facts = facts_of(samples=20, validation=2, context=16, vocabulary=67, steps=2)
    facts = facts.model_copy(update={"artifacts": dict.fromkeys(files, "")})
    prints = []
    for nodes, stages in (("a", ((0, 4),)), ("ab", ((0, 2), (3, 4)))):
        hub = Hub(job, facts, files)
        for name in nodes:
            hub.start(name, Windows(facts))
        hub.begin(Plan((tuple(nodes),), stages, (2,)), nodes, checkpoint=0)
        hub.finish(nodes)
        assert not hub.errors, hub.errors
        held = [one for node in nodes for one in hub.trainers[node].state.tensors()]
        prints.append({name: values for name, prefix, values in held if not prefix})
    assert prints[0].keys() == prints[1].keys()
    for name, values in prints[0].items():
        torch.testing.assert_close(prints[1][name], values, rtol=1e-4, atol=1e-6)
