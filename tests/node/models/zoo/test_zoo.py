"""Every family of decoders, small, from files to files: cut into stages it computes what `transformers` computes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors.torch import save_file
from small_models import CASES, CONTEXT, VOCABULARY, Case, job_of, saved, table

from farflung.job.data.facts import Facts, Profile
from farflung.node.generation.checkpoint import Checkpoint
from farflung.node.generation.export import write_export
from farflung.node.models.definition import LanguageModel
from farflung.node.models.dropout import Draw
from farflung.node.models.factory import model_of
from farflung.node.models.lora import LoraModel
from farflung.node.models.profiling.cost import language_layers, profile
from farflung.node.models.quantised import fill, pack, unpack
from farflung.node.models.weights.pretrained import initial_weights, weights_of
from farflung.proto.errors import FarflungError

IDS = torch.randint(0, VOCABULARY, (2, CONTEXT + 1), generator=torch.Generator().manual_seed(5))
INPUTS, TARGETS = IDS[:, :-1], IDS[:, 1:]
LOSS = torch.nn.functional.cross_entropy
LAST = 4


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def zoo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A model, its folder, and what `transformers` computes with it."""
    case: Case = request.param
    folder = tmp_path_factory.mktemp(case.family)
    model = saved(case, folder)
    logits = model(INPUTS).logits
    LOSS(logits.flatten(0, 1), TARGETS.flatten(), reduction="sum").backward()
    job = job_of(folder)
    definition = model_of(job, None)
    assert isinstance(definition, LanguageModel)
    weights = initial_weights(definition, list(definition.stored), 0, weights_of(job, None))
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return SimpleNamespace(
        case=case,
        folder=folder,
        job=job,
        definition=definition,
        weights=weights,
        logits=logits.detach(),
        gradients=gradients,
    )


def stages_of(zoo: SimpleNamespace, *ends: int) -> list[torch.nn.Module]:
    stages, first = [], 0
    for end in ends:
        stage = zoo.definition.build(first, end).train()
        stage.load_state_dict({name: zoo.weights[name] for name, _ in stage.named_parameters()})
        stages.append(stage)
        first = end + 1
    return stages


@pytest.mark.parametrize("ends", [(1, LAST), (0, 3, LAST), tuple(range(5))], ids=["2 stages", "3 stages", "by layers"])
def test_stages_compute_what_transformers_computes(zoo: SimpleNamespace, ends: tuple[int, ...]) -> None:
    stages, hidden = stages_of(zoo, *ends), INPUTS
    for stage in stages:
        hidden = stage(hidden)
    torch.testing.assert_close(hidden, zoo.logits, rtol=0, atol=1e-5)
    stages[-1].loss_sum(hidden, TARGETS).backward()
    found: dict[str, torch.Tensor] = {}
    for stage in stages:
        for name, parameter in stage.named_parameters():
            if parameter.grad is not None:
                found[name] = found.get(name, torch.zeros(())) + parameter.grad
    assert {name for stage in stages for name, _ in stage.named_parameters()} == set(zoo.weights)
    for name in zoo.definition.shapes:
        wanted = zoo.gradients[zoo.definition.inner(name)]
        if wanted is not None or name in found:
            torch.testing.assert_close(found[name], wanted, rtol=1e-4, atol=1e-5)


def test_documents_of_a_sample_do_not_see_each_other(zoo: SimpleNamespace) -> None:
    """Or samples of several are refused, where the family's attention does not know of them."""
    (stage,) = stages_of(zoo, LAST)
    places = torch.tensor([[*range(6), *range(CONTEXT - 6)]] * 2)
    if not zoo.definition.anatomy.documents:
        with pytest.raises(FarflungError, match="samples of one document"):
            stage(INPUTS, places)
        return
    with torch.no_grad():
        alone = torch.cat([stage(INPUTS[:, :6]), stage(INPUTS[:, 6:])], 1)
        torch.testing.assert_close(stage(INPUTS, places), alone, rtol=0, atol=1e-5)


def test_dropout_is_of_each_sample_and_step_alone(zoo: SimpleNamespace) -> None:
    """In one stage and in two, one sample or several, again in the backward pass or not."""
    job = job_of(zoo.folder)
    model = job.model.model_copy(update={"dropout": 0.3})
    job = job.model_copy(update={"model": model, "train": job.train.model_copy(update={"recompute": True})})
    if zoo.case.family == "mpt":  # its configuration has rates, and its layers do not look at them
        with pytest.raises(FarflungError, match="'mpt' has no dropout"):
            model_of(job, None)
        return
    definition = model_of(job, None)
    assert definition.drops
    before = torch.get_rng_state()

    def outputs(ends: tuple[int, ...], samples: tuple[int, ...], rows: torch.Tensor, step: int = 3) -> torch.Tensor:
        hidden, first = rows, 0
        for end in ends:
            stage = definition.build(first, end).train()
            stage.load_state_dict({name: zoo.weights[name] for name, _ in stage.named_parameters()})
            stage.draw, first = Draw(1, step, samples), end + 1
            hidden = stage(hidden)
        return hidden.detach()

    whole = outputs((LAST,), (5, 8), INPUTS)
    torch.testing.assert_close(outputs((1, LAST), (5, 8), INPUTS), whole, rtol=0, atol=1e-5)
    torch.testing.assert_close(outputs((LAST,), (8,), INPUTS[1:]), whole[1:], rtol=0, atol=1e-5)
    assert not torch.allclose(outputs((LAST,), (5, 8), INPUTS, 4), whole, atol=1e-3)
    assert not torch.allclose(whole, zoo.logits, atol=1e-3)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_export_is_the_folder_again_and_transformers_loads_it(zoo: SimpleNamespace, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    save_file({name: values.contiguous() for name, values in zoo.weights.items()}, folder / "stage-0.safetensors")
    out = tmp_path / "out"
    out.mkdir()
    write_export(Checkpoint(folder, 1, zoo.job, facts_of(zoo)), out, merge=False)
    for path in zoo.folder.iterdir():
        assert (out / path.name).exists(), path.name
        if path.suffix == ".safetensors":
            assert (out / path.name).stat().st_size == path.stat().st_size
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(
        out, dtype=torch.float32, output_loading_info=True
    )
    assert not loading["missing_keys"] and not loading["unexpected_keys"] and not loading["mismatched_keys"]
    torch.testing.assert_close(model(INPUTS).logits, zoo.logits, rtol=0, atol=1e-6)


def test_a_profile_counts_every_weight_and_only_the_experts_that_compute(zoo: SimpleNamespace) -> None:
    layers = profile(zoo.job, VOCABULARY).layers
    whole = {name: values.numel() for name, values in zoo.weights.items()}
    tied = whole.get(zoo.definition.tied, 0)
    assert sum(layer.parameters + layer.frozen for layer in layers) == sum(whole.values()) + tied
    blocks = layers[1:-1]
    assert all(layer.stored_elements_per_sample > 0 for layer in blocks)
    used = [layer.flops_per_sample / (6 * CONTEXT * layer.parameters) for layer in blocks]
    experts = zoo.definition.config.to_dict().get("num_experts_per_tok")
    assert min(used) < 0.9 if experts else min(used) > 0.8


def targets_of(zoo: SimpleNamespace) -> dict[str, list[str]]:
    """Matrices that adapters stand beside, where the family has some of these names; else what peft takes."""
    targets = sorted(
        {name.split(".")[-2] for name in zoo.definition.parameter_names(1, 1) if name.endswith("proj.weight")}
        & {"q_proj", "o_proj", "out_proj"}
    )
    return {"targets": targets} if targets else {}


def test_adapters_alone_train_and_begin_as_the_base(zoo: SimpleNamespace) -> None:
    job = job_of(zoo.folder, rank=2, **targets_of(zoo))
    definition = model_of(job, None)
    assert isinstance(definition, LanguageModel)
    assert definition.shapes and all(".lora_" in name for name in definition.shapes)
    assert set(definition.frozen) == set(zoo.weights)
    counted, whole = (language_layers(one, CONTEXT, "bf16") for one in (definition, zoo.definition))
    for layer, one in enumerate(counted):  # frozen matrices keep no inputs
        assert 0 < one.stored_elements_per_sample < whole[layer + 1].stored_elements_per_sample + 2 * CONTEXT
    assert counted[-1].after_elements_per_sample > CONTEXT * VOCABULARY
    hidden = INPUTS
    for first, last in ((0, 0), (1, 2)):
        stage = definition.build(first, last).train()
        for name, parameter in stage.named_parameters():
            base = name.replace(".base_layer.", ".")
            parameter.data = zoo.weights[base].clone() if base in zoo.weights else definition.initial(name, 3)
        hidden = stage(hidden)
    torch.testing.assert_close(hidden, zoo.logits, rtol=0, atol=1e-5)
    stage.loss_sum(hidden, TARGETS).backward()
    assert {name for name, one in stage.named_parameters() if one.grad is not None} == set(
        definition.parameter_names(1, 2)
    )


def test_adapters_beside_a_base_in_4_bits_compute_with_what_it_stands_for(zoo: SimpleNamespace) -> None:
    job = job_of(zoo.folder, rank=2, base="nf4", **targets_of(zoo))
    if zoo.case.family == "falcon":  # whose linear layers are of a class of its own
        with pytest.raises(FarflungError, match="no linear layer of the family 'falcon' can be kept in nf4"):
            model_of(job, None)
        return
    definition = model_of(job, None)
    assert isinstance(definition, LoraModel) and definition.packed
    stands_for = {
        name: unpack(pack(values, "nf4"), tuple(values.shape)) if name in definition.packed else values
        for name, values in zoo.weights.items()
    }
    outputs = []
    for kept in (definition, model_of(job_of(zoo.folder, rank=2, **targets_of(zoo)), None)):
        stage = kept.build(0, 2).eval()
        for name, parameter in stage.named_parameters():
            base = name.replace(".base_layer.", ".")
            fill(parameter.data, stands_for[base] if base in stands_for else kept.initial(name, 3))
        outputs.append(stage(INPUTS))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=1e-5)


def facts_of(zoo: SimpleNamespace) -> Facts:
    return Facts(
        samples=4,
        validation_samples=1,
        context=CONTEXT,
        vocabulary=VOCABULARY,
        token_dtype="uint8",
        steps=1,
        tokens_digest="",
        profile=Profile(layers=[], tied=False, family=zoo.case.family),
        artifacts={f"model/{path.name}": "" for path in zoo.folder.iterdir()},
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "bert"}, "it sees the words that it is to predict"),
        ({"model_type": "nosuch"}, "knows no decoder of that name"),
        ({"model_type": "qwen3", "head_dim": -1}, "transformers does not build the model 'qwen3'"),
        ({"model_type": "gemma3n_text"}, "can't be cut into stages"),
    ],
)
def test_what_can_not_be_cut_is_refused_with_the_row_that_is_missing(
    tmp_path: Path, values: dict[str, object], message: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(FarflungError, match=message) as caught:
        model_of(job_of(tmp_path), None)
    assert caught.value.hint


def test_the_table_in_the_docs_is_of_these_tests() -> None:
    page = (Path(__file__).parents[4] / "docs/how-to/models.md").read_text(encoding="utf-8")
    assert table() in page, f"docs/how-to/models.md should have:\n{table()}"
