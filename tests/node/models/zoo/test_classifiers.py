"""Encoders and decoders with a head for classes, small, from files to files: their stages compute what `transformers`
computes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from small_classifiers import (
    CLASSIFIERS,
    IDS,
    KINDS,
    LABELS,
    NAMES,
    TARGETS,
    adapters_for,
    job_of,
    keywords_of,
    saved,
    table,
)

from farflung.job.data.facts import Facts, Profile
from farflung.job.schema import Job
from farflung.node.generation.checkpoint import Checkpoint
from farflung.node.generation.export import write_export
from farflung.node.models.classifier import AdaptedClassifier, ClassifierModel
from farflung.node.models.dropout import Draw
from farflung.node.models.factory import model_of
from farflung.node.models.lora import load_frozen
from farflung.node.models.profiling.cost import profile
from farflung.node.models.weights.pretrained import initial_weights, weights_of
from farflung.proto.errors import FarflungError

LOSS = torch.nn.functional.cross_entropy
LAST = 4


@pytest.fixture(scope="module", params=CLASSIFIERS, ids=str)
def zoo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A model, its folder, and what `transformers` computes with it."""
    folder = tmp_path_factory.mktemp(request.param)
    model = saved(request.param, folder)
    logits = model(IDS, **keywords_of(model)).logits
    LOSS(logits, LABELS, reduction="sum").backward()
    job = job_of(folder)
    definition = model_of(job, None)
    assert isinstance(definition, ClassifierModel)
    weights = initial_weights(definition, list(definition.stored), 0, weights_of(job, None))
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return SimpleNamespace(
        family=request.param, folder=folder, job=job, definition=definition, weights=weights,
        logits=logits.detach(), gradients=gradients,
    )  # fmt: skip


def outputs(zoo: SimpleNamespace, ends: tuple[int, ...], definition: ClassifierModel, draw: Draw | None = None):
    stages, hidden, first = [], IDS, 0
    for end in ends:
        stage = definition.build(first, end).train()
        stage.load_state_dict({name: zoo.weights[name] for name, _ in stage.named_parameters()})
        stage.draw = draw
        hidden = stage(hidden, KINDS)
        stages.append(stage)
        first = end + 1
    return stages, hidden


@pytest.mark.parametrize("ends", [(LAST,), (1, LAST), (0, 3, LAST)], ids=["1 stage", "2 stages", "3 stages"])
def test_stages_compute_what_transformers_computes(zoo: SimpleNamespace, ends: tuple[int, ...]) -> None:
    stages, logits = outputs(zoo, ends, zoo.definition)
    torch.testing.assert_close(logits, zoo.logits, rtol=0, atol=1e-5)
    stages[-1].loss_sum(logits, TARGETS).backward()
    assert stages[-1].target_count(TARGETS) == len(IDS)
    assert int(stages[-1].correct(logits, TARGETS)) == int((zoo.logits.argmax(-1) == LABELS).sum())
    found = {name: one.grad for stage in stages for name, one in stage.named_parameters()}
    assert set(found) == set(zoo.weights)
    for name, gradient in zoo.gradients.items():
        if gradient is not None:
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5)


def test_an_export_is_loaded_by_transformers_with_its_classes(zoo: SimpleNamespace, tmp_path: Path) -> None:
    out = exported(zoo.job, zoo.weights, tmp_path, merge=False)
    model, loading = transformers.AutoModelForSequenceClassification.from_pretrained(out, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"] and not loading["mismatched_keys"]
    assert [model.config.id2label[number] for number in range(len(NAMES))] == NAMES
    torch.testing.assert_close(model(IDS, **keywords_of(model)).logits, zoo.logits, rtol=0, atol=1e-6)


def exported(job: Job, weights: dict[str, torch.Tensor], folder: Path, merge: bool) -> Path:
    """The export of a checkpoint with these values."""
    checkpoint, out = folder / "checkpoint", folder / ("merged" if merge else "out")
    checkpoint.mkdir(exist_ok=True)
    out.mkdir()
    save_file({name: values.contiguous() for name, values in weights.items()}, checkpoint / "stage-0.safetensors")
    facts = Facts(
        samples=4, validation_samples=1, context=IDS.shape[1], vocabulary=67, token_dtype="marked32", steps=1,
        tokens_digest="", profile=Profile(layers=[], tied=False, family=""), artifacts={}, layout="labelled",
    )  # fmt: skip
    write_export(Checkpoint(checkpoint, 1, job, facts), out, merge=merge)
    return out


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # peft reads it
def test_adapters_and_the_head_train_as_with_peft_and_it_loads_them(zoo: SimpleNamespace, tmp_path: Path) -> None:
    job = job_of(zoo.folder, adapters_for(zoo.family))
    definition, stored = model_of(job, None), weights_of(job, None)
    assert isinstance(definition, AdaptedClassifier)
    torch.manual_seed(4)
    values = initial_weights(definition, list(definition.shapes), 0, stored)
    heads = [name for name in values if ".lora_" not in name]
    assert heads and all(torch.equal(values[name], zoo.weights[name]) for name in heads), "the folder's"
    values = {name: one + 0.3 * torch.randn_like(one) for name, one in values.items()}
    base = transformers.AutoModelForSequenceClassification.from_pretrained(zoo.folder)
    out = exported(job, values, tmp_path, merge=False)
    model = peft.PeftModel.from_pretrained(base, out, is_trainable=True).eval()
    wanted = model(IDS, **keywords_of(model.base_model.model)).logits
    LOSS(wanted, LABELS, reduction="sum").backward()
    asked = {
        name.removeprefix("base_model.model.").replace(".modules_to_save.default", ""): one.grad
        for name, one in model.named_parameters()
        if one.requires_grad
    }
    assert set(asked) == set(definition.shapes)
    for ends in ((2,), (0, 2)):
        stages, hidden, first = [], IDS, 0
        for end in ends:
            stage = definition.build(first, end).train()
            load_frozen(stage, lambda name: zoo.weights[name])
            with torch.no_grad():
                for name, one in stage.named_parameters():
                    if one.requires_grad:
                        one.copy_(values[name])
            assert definition.parameter_names(first, end) == [
                name for name, one in stage.named_parameters() if one.requires_grad
            ]
            stages.append(stage)
            hidden, first = stage(hidden, KINDS), end + 1
        torch.testing.assert_close(hidden, wanted, rtol=0, atol=1e-5)
        stages[-1].loss_sum(hidden, TARGETS).backward()
        for stage in stages:
            for name, one in stage.named_parameters():
                if one.requires_grad:
                    torch.testing.assert_close(one.grad, asked[name], rtol=1e-4, atol=1e-5)
    merged = exported(job, values, tmp_path, merge=True)
    whole = transformers.AutoModelForSequenceClassification.from_pretrained(merged)
    assert [whole.config.id2label[number] for number in range(len(NAMES))] == NAMES
    torch.testing.assert_close(whole(IDS, **keywords_of(whole)).logits, wanted, rtol=0, atol=1e-5)
    layers, plain = profile(job, 67).layers, profile(zoo.job, 67).layers
    assert sum(layer.parameters for layer in layers) == sum(one.numel() for one in values.values())
    own = sum(zoo.weights[name].numel() for name in heads)
    assert sum(layer.frozen for layer in layers) == sum(layer.parameters for layer in plain) - own
    assert layers[0].activation_elements_per_sample == plain[1].activation_elements_per_sample


@pytest.mark.parametrize(("given", "named"), [(["dense"], {"dense"}), (["query", "dense"], {"query", "dense"})])
def test_the_head_has_no_adapters_whatever_its_layers_are_called(
    tmp_path: Path, given: list[str], named: set[str]
) -> None:
    saved("bert", tmp_path)
    definition = model_of(job_of(tmp_path, {"rank": 2, "targets": given}), None)
    assert isinstance(definition, AdaptedClassifier) and definition.whole == ("pooler", "classifier")
    assert {path.rpartition(".")[2] for path in definition.adapted} == named
    assert all(".layer." in path for path in definition.adapted)
    with pytest.raises(FarflungError, match=r"no layer of the family bert is called 'classifier'"):
        model_of(job_of(tmp_path, {"targets": ["classifier"]}), None)


def test_dropout_is_the_same_wherever_a_model_is_cut(zoo: SimpleNamespace) -> None:
    model = zoo.job.model.model_copy(update={"dropout": 0.3})
    definition = model_of(zoo.job.model_copy(update={"model": model}), None)
    whole, cut = (outputs(zoo, ends, definition, Draw(1, 3, (5, 8, 9)))[1] for ends in ((LAST,), (1, LAST)))
    torch.testing.assert_close(cut, whole, rtol=0, atol=1e-5)
    assert not torch.allclose(whole, zoo.logits, atol=1e-3)


def test_a_profile_counts_every_weight(zoo: SimpleNamespace) -> None:
    layers = profile(zoo.job, 67).layers
    assert sum(layer.parameters for layer in layers) == sum(values.numel() for values in zoo.weights.values())
    assert all(layer.flops_per_sample > 0 and layer.stored_elements_per_sample > 0 for layer in layers[1:-1])


@pytest.mark.parametrize(
    ("family", "other", "anew"),
    [
        ("bert", "AutoModelForMaskedLM", {"bert.pooler.dense", "classifier"}),
        ("bert", "AutoModel", {"classifier"}),
        ("roberta", "AutoModelForMaskedLM", {"classifier.dense", "classifier.out_proj"}),
        ("llama", "AutoModelForCausalLM", {"score"}),
    ],
)
def test_the_head_that_a_folder_lacks_begins_anew_and_nothing_else_does(
    tmp_path: Path, family: str, other: str, anew: set[str]
) -> None:
    """Also where its names are those of TensorFlow, as in the first files of BERT."""
    model = saved(family, tmp_path / "whole")
    torch.manual_seed(2)
    getattr(transformers, other).from_config(model.config).save_pretrained(tmp_path / "base")
    path = tmp_path / "base" / "model.safetensors"
    stored = load_file(path)
    for name in [one for one in stored if ".LayerNorm." in one]:
        stored[name.replace(".weight", ".gamma").replace(".bias", ".beta")] = stored.pop(name)
    save_file(stored, path, {"format": "pt"})
    job = job_of(tmp_path / "base")
    definition, weights = model_of(job, None), weights_of(job, None)
    assert {name.rpartition(".")[0] for name in definition.shapes if not weights.has(definition, name)} == anew
    profile(job, 67)
    drawn = [initial_weights(definition, [f"{min(anew)}.weight"], seed, weights) for seed in (1, 1, 2)]
    (one, again, other_seed) = (next(iter(values.values())) for values in drawn)
    assert torch.equal(one, again) and not torch.equal(one, other_seed)
    kept = next(name for name in stored if "norm" in name.lower() and ".0." in name)
    del stored[kept]
    save_file(stored, path, {"format": "pt"})
    with pytest.raises(FarflungError, match="is missing"):
        profile(job, 67)


def test_a_folder_with_another_number_of_classes_is_refused_with_what_to_do(tmp_path: Path) -> None:
    saved("bert", tmp_path)
    job = job_of(tmp_path)
    job = job.model_copy(update={"data": job.data.model_copy(update={"classes": [*NAMES, "more"]})})
    with pytest.raises(FarflungError, match=r"classifier\.weight has the shape") as caught:
        profile(job, 67)
    assert "name as many classes in data.classes" in str(caught.value.hint)


def test_what_has_no_such_head_or_hands_on_more_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bertt"}')
    with pytest.raises(FarflungError, match="no sequence classification for the family 'bertt'; it has it for 'bert'"):
        model_of(job_of(tmp_path), None)
    saved("albert", tmp_path)
    with pytest.raises(FarflungError, match="its 3 blocks are 1 computed again and again"):
        model_of(job_of(tmp_path), None)
    saved("deberta-v2", tmp_path, conv_kernel_size=3)
    with pytest.raises(FarflungError, match=r"'deberta-v2' can't be cut into stages: .*conv.* is computed between"):
        model_of(job_of(tmp_path), None)


def test_cutting_a_model_leaves_transformers_as_it_is(tmp_path: Path) -> None:
    """DeBERTa makes a length a tensor, which the run without values must not turn into one without a value."""
    from transformers.models.deberta import modeling_deberta

    before = dict(vars(modeling_deberta))
    saved("deberta (v1)", tmp_path)
    assert model_of(job_of(tmp_path), None).anatomy.table
    assert all(vars(modeling_deberta)[name] is one for name, one in before.items())


def test_the_table_in_the_docs_is_of_these_tests() -> None:
    page = (Path(__file__).parents[4] / "docs/how-to/classify.md").read_text(encoding="utf-8")
    assert table() in page, f"docs/how-to/classify.md should have:\n{table()}"
