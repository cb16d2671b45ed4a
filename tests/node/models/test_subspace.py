"""Blocks that write into a subspace: cut models give what the whole gives, and what transformers gives after export."""

import itertools

import pytest
import torch
import transformers
from windows import Windows, facts_of

from farflung.job.checks.whole import job_mistakes
from farflung.job.schema import Checkpoint, Job, Run
from farflung.job.tables.model import SUBSPACE_FAMILIES
from farflung.node.models.factory import model_of
from farflung.node.models.profiling.cost import profile
from farflung.node.models.stage import Pass
from farflung.proto import data_pb2
from farflung.scheduler import Plan
from farflung.scheduler.workloads.jobs import workload_of
from farflung.testing.loopback import Hub

WIDTH, RANK, VOCABULARY, CONTEXT = 32, 6, 67, 16


def job_of(family="llama", **model):
    shape = {"layers": 3, "width": WIDTH, "heads": 4, "context": CONTEXT, "vocabulary": VOCABULARY, "subspace": RANK}
    return Job.model_validate(
        {
            "model": {"family": family, **shape, **model},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 4, "microbatch": 2},
        }
    )


def stages_of(definition, *ranges):
    stages = [definition.build(first, last) for first, last in ranges]
    for stage in stages:
        definition.initialise(stage, 3)
        stage.train()
    return stages


def one_step(stages, inputs, targets, places=None):
    """(loss, gradients by name, what crossed the borders) of a microbatch."""
    passes, crossed, values = [], [], inputs
    for stage in stages:
        stage.tokens = inputs
        passes.append(Pass(stage, values, targets, places))
        values = passes[-1].output.detach().clone()
        crossed.append(values)
    gradient = torch.ones(())
    for made in reversed(passes):
        gradient = made.backward(gradient)
        if gradient is not None:
            crossed.append(gradient)
    gradients = {}
    for stage in stages:
        gradients |= {name: parameter.grad for name, parameter in stage.named_parameters()}
    return passes[-1].output.detach(), gradients, [one.shape for one in crossed if one.dim()]


def data():
    ids = torch.randint(0, VOCABULARY, (3, CONTEXT + 1), generator=torch.Generator().manual_seed(5))
    return ids[:, :-1], ids[:, 1:]


@pytest.mark.parametrize("family", SUBSPACE_FAMILIES)
def test_cut_models_give_what_the_whole_gives(family):
    definition = model_of(job_of(family), None)
    inputs, targets = data()
    loss, gradients, _ = one_step(stages_of(definition, (0, 4)), inputs, targets)
    cut_loss, cut_gradients, crossed = one_step(stages_of(definition, (0, 1), (2, 2), (3, 4)), inputs, targets)
    torch.testing.assert_close(cut_loss, loss, rtol=1e-6, atol=0)
    assert cut_gradients.keys() == gradients.keys() == definition.shapes.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(cut_gradients[name], gradient, rtol=1e-5, atol=1e-6)
    assert set(crossed) == {(3, CONTEXT, RANK)}  # forward and back


@pytest.mark.parametrize("family", SUBSPACE_FAMILIES)
def test_an_export_is_an_ordinary_model_of_the_family(family):
    definition = model_of(job_of(family), None)
    inputs, _ = data()
    (stage,) = stages_of(definition, (0, 4))
    with torch.no_grad():  # biases and gains that are not where they began
        for parameter in stage.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)), alpha=0.05)
    values = {name: parameter.detach() for name, parameter in stage.named_parameters()}
    exported = {name: definition.exported(name, value) for name, value in values.items()}
    assert {name: tuple(value.shape) for name, value in exported.items()} == dict(definition.stored)
    model = transformers.AutoModelForCausalLM.from_config(definition.config).eval()
    renamed = {definition.inner(name): value for name, value in exported.items()}
    missing, unexpected = model.load_state_dict(renamed, strict=False)
    assert not missing and not unexpected
    with torch.no_grad():
        torch.testing.assert_close(stage(inputs), model(inputs).logits, rtol=1e-5, atol=1e-5)
        hidden = model(inputs, output_hidden_states=True).hidden_states
    for before, after in itertools.pairwise(hidden[:-1]):  # the last is behind the final norm
        assert torch.equal(before[..., RANK:], after[..., RANK:]), "a block writes beyond the subspace"
        assert not torch.equal(before[..., :RANK], after[..., :RANK])


def test_places_of_several_documents_cross_with_the_tokens():
    definition = model_of(job_of("gpt2"), None)
    inputs, targets = data()
    places = torch.tensor([[*range(9), *range(7)]] * 3)
    whole = one_step(stages_of(definition, (0, 4)), inputs, targets, places)
    cut = one_step(stages_of(definition, (0, 1), (2, 4)), inputs, targets, places)
    torch.testing.assert_close(cut[0], whole[0], rtol=1e-6, atol=0)
    assert whole[0] != one_step(stages_of(definition, (0, 4)), inputs, targets)[0]


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
def test_a_plan_from_the_file_counts_what_the_profile_counts(family):
    job = job_of(family)
    counted = profile(job, VOCABULARY).layers
    planned = workload_of({"model": {**job.model.model_dump(exclude_none=True)}, "data": {"tokenizer": "bytes"}})
    for one, other in zip(counted, planned.layers, strict=True):
        assert one.parameters == other.parameters
    assert [one.activation_elements_per_sample for one in counted[:-1]] == [CONTEXT * RANK] * 4
    assert [one.activation for one in planned.layers[1:-1]] == [CONTEXT * RANK] * 3


@pytest.mark.usefixtures("nobody_late")
def test_a_run_of_three_stages_is_a_run_of_one_with_fewer_bytes():
    facts = facts_of(samples=40, validation=4, context=CONTEXT, vocabulary=29, steps=6)
    job = job_of("gpt2", vocabulary=29)
    job = job.model_copy(update={"run": Run(name="narrow", steps=6), "checkpoint": Checkpoint(every=0)})
    losses, sent = [], 0
    for stages in (((0, 4),), ((0, 1), (2, 2), (3, 4))):
        hub, data = Hub(job, facts), Windows(facts)
        plan = Plan(pipelines=(tuple(f"n{stage}" for stage in range(len(stages))),), stages=stages, microbatches=(2,))
        for name in plan.nodes:
            hub.start(name, data)
        hub.begin(plan, plan.nodes, checkpoint=0)
        outcome = hub.finish(plan.nodes)
        assert not hub.errors, hub.errors
        losses.append([outcome.losses[step] for step in range(1, 7)])
        sent = hub.bytes.get(data_pb2.ACTIVATION, 0)
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
    values = 6 * 2 * 2 * 2 * CONTEXT * RANK  # steps, microbatches, borders, samples
    assert 4 * values <= sent < 4 * values * 1.5  # with headers


def test_half_of_a_border_is_refused():
    definition = model_of(job_of(), None)
    _, stage = stages_of(definition, (0, 1), (2, 4))
    stage.tokens = data()[0]
    with pytest.raises(RuntimeError, match="came for tokens"):
        stage(torch.zeros(3, CONTEXT, WIDTH))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"subspace": WIDTH}, "is not less than model.width"),
        ({"tie": True}, "most of the embedding is fixed"),
        ({"dropout": 0.1}, "knows no mask"),
        ({"family": "olmo2"}, "allowed with family"),
    ],
)
def test_what_does_not_go_with_a_subspace_is_said(model, words):
    assert any(words in sentence for _, sentence in job_mistakes(job_of(**model), files=False))
