"""Stages against `transformers`' own models: the same numbers, whole and cut, and the same names."""

import itertools

import pytest
import torch
import transformers

from farflung.job.schema import Job
from farflung.job.tables.model import FAMILIES
from farflung.node.models.factory import model_of
from farflung.proto.errors import FarflungError

TIED = {"qwen3", "smollm3", "granite"}
"""Of families that are llama but for something, which have a case with a tied head; the others have one without."""
CASES = [
    (family, tie)
    for family in FAMILIES
    for tie in ((False, True) if family in ("gpt2", "llama", "gpt_neox") else (family in TIED,))
]


def job_of(family, tie=None, recompute=False, **model):
    shape = {"layers": 3, "width": 32, "heads": 4, "context": 16, "vocabulary": 67, **model}
    if family not in ("gpt2", "gpt_neox"):
        shape.setdefault("kv_heads", 2)
    return Job.model_validate(
        {
            "model": {"family": family, "tie": tie, **shape},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 4, "microbatch": 2, "recompute": recompute},
        }
    )


def definition_of(family, tie=None, recompute=False, **model):
    return model_of(job_of(family, tie, recompute, **model), None)


def whole(definition, seed=3):
    """`transformers`' own model with the definition's initial weights."""
    model = transformers.AutoModelForCausalLM.from_config(definition.config)
    head = model.get_output_embeddings()
    (here,) = (path for path, module in model.named_modules() if module is head)
    names = {definition.head_name: f"{here}.weight"}  # the attribute's name depends on the version of transformers
    weights = {names.get(name, name): definition.initial(name, seed) for name in definition.shapes}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert missing == ([] if definition.tied is None else [f"{here}.weight"])
    return model.train()


def stages_of(definition, ranges, seed=3):
    stages = [definition.build(first, last) for first, last in ranges]
    for stage in stages:
        definition.initialise(stage, seed)
        stage.train()
    return stages


def data():
    ids = torch.randint(0, 67, (3, 17), generator=torch.Generator().manual_seed(5))
    return ids[:, :-1], ids[:, 1:]


def run(stages, inputs):
    for stage in stages:
        inputs = stage(inputs)
    return inputs


@pytest.mark.parametrize(("family", "tie"), CASES)
def test_a_whole_stage_gives_the_numbers_of_transformers(family, tie):
    definition = definition_of(family, tie)
    inputs, targets = data()
    expected = whole(definition)(inputs).logits
    (stage,) = stages_of(definition, [(0, 4)])
    logits = stage(inputs)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6)
    loss = torch.nn.functional.cross_entropy(expected.flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(stage.loss_sum(logits, targets), loss, rtol=1e-6, atol=0)
    assert stage.target_count(targets) == 48
    assert stage.correct(logits, targets) == int((expected.argmax(-1) == targets).sum())


@pytest.mark.parametrize(("family", "tie"), CASES)
@pytest.mark.parametrize("ranges", [[(0, 2), (3, 4)], [(0, 0), (1, 3), (4, 4)]])
def test_cut_stages_compose_to_the_whole_with_its_gradients(family, tie, ranges):
    definition = definition_of(family, tie)
    inputs, targets = data()
    (one,) = stages_of(definition, [(0, 4)])
    stages = stages_of(definition, ranges)
    loss = one.loss_sum(one(inputs), targets)
    loss.backward()
    cut = stages[-1].loss_sum(run(stages, inputs), targets)
    cut.backward()
    assert cut.item() == loss.item()
    summed = {}
    for stage in stages:
        for name, parameter in stage.named_parameters():
            summed[name] = summed.get(name, 0) + parameter.grad
    for name, parameter in one.named_parameters():
        torch.testing.assert_close(summed[name], parameter.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("family", "tie"), CASES)
def test_names_are_those_of_transformers_and_disjoint_but_for_the_tied_one(family, tie):
    definition = definition_of(family, tie)
    model = whole(definition)
    names = {"lm_head.weight": definition.head_name}
    assert {names.get(name, name): tuple(p.shape) for name, p in model.named_parameters()} == definition.shapes
    for cut in itertools.product((0, 1, 3), (3, 4)):
        ranges = [(0, cut[0]), (cut[0] + 1, 4)] if cut[0] < 4 else [(0, 4)]
        stages = [definition.build(first, last) for first, last in ranges]
        names = [[name for name, _ in stage.named_parameters()] for stage in stages]
        assert names == [definition.parameter_names(first, last) for first, last in ranges]
        shared = set(names[0]) & set(names[-1])
        assert shared == ({definition.tied} if tie else set())
        assert set().union(*names) == set(definition.shapes)
    assert definition.layer_of(definition.parameter_names(0, 0)[0]) == 0
    assert definition.layers == ["embedding", "block 0", "block 1", "block 2", "head"]


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
def test_recompute_changes_no_number(family):
    inputs, targets = data()
    results = []
    for recompute in (False, True):
        (stage,) = stages_of(definition_of(family, recompute=recompute), [(0, 4)])
        loss = stage.loss_sum(stage(inputs), targets)
        loss.backward()
        results.append((loss.detach(), [parameter.grad for parameter in stage.parameters()]))
    assert torch.equal(results[0][0], results[1][0])
    for plain, again in zip(results[0][1], results[1][1], strict=True):
        assert torch.equal(plain, again)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
def test_under_autocast_stages_hand_on_float32_and_compose(family):
    definition = definition_of(family)
    inputs, targets = data()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (one,) = stages_of(definition, [(0, 4)])
        stages = stages_of(definition, [(0, 1), (2, 4)])
        hidden = stages[0](inputs)
        assert hidden.dtype == torch.float32
        cut, whole_loss = stages[1].loss_sum(stages[1](hidden), targets), one.loss_sum(one(inputs), targets)
    assert cut.dtype == torch.float32
    assert cut.item() == whole_loss.item()


def test_initial_values_depend_on_seed_and_name_alone():
    small, deep = definition_of("gpt2"), definition_of("gpt2", layers=5)
    name = "transformer.h.0.attn.c_attn.weight"
    assert torch.equal(small.initial(name, 1), deep.initial(name, 1))
    assert not torch.equal(small.initial(name, 1), small.initial(name, 2))
    assert not torch.equal(small.initial(name, 1), small.initial("transformer.h.1.attn.c_attn.weight", 1))
    assert abs(small.initial(name, 1).std().item() / (2 / (5 * 32)) ** 0.5 - 1) < 0.05
    residual = small.initial("transformer.h.0.mlp.c_proj.weight", 1).std().item()
    assert abs(residual / (2 / (5 * 32) / 6) ** 0.5 - 1) < 0.05
    assert small.initial("transformer.h.0.ln_1.weight", 1).eq(1).all()
    assert small.initial("transformer.h.0.attn.c_attn.bias", 1).eq(0).all()


def test_only_the_stages_own_layers_are_materialised():
    stage = definition_of("llama").build(2, 3)
    assert {name.split(".")[2] for name, _ in stage.named_parameters()} == {"1", "2"}
    assert not any(tensor.is_meta for tensor in itertools.chain(stage.parameters(), stage.buffers()))
    assert not stage.is_first and not stage.is_last


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"width": 30}, "does not divide into 4 heads"),
        ({"heads": None}, "model.heads is missing"),
        ({"kv_heads": 3}, "kv_heads = 3 does not divide"),
    ],
)
def test_impossible_shapes_are_refused_in_one_sentence(model, message):
    with pytest.raises(FarflungError, match=message):
        definition_of("llama", **model)


def test_a_stage_outside_the_model_is_refused():
    with pytest.raises(ValueError, match="not a range"):
        definition_of("gpt2").build(2, 5)
