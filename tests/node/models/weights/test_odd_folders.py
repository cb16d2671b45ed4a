"""Folders in the odd forms that people publish: each works, or one sentence says what to do."""

import json
import shlex
import sys

import pytest
import torch
from safetensors.torch import load_file
from small_models import Case, job_of, saved

from farflung.job.checks.model import pretrained_mistakes
from farflung.job.data.facts import Facts, Profile
from farflung.job.model_folder.config import pretrained_config
from farflung.node.models.factory import model_of
from farflung.node.models.profiling.cost import profile
from farflung.node.models.weights.pretrained import INDEX, initial_weights, weights_of
from farflung.proto.errors import FarflungError


@pytest.fixture
def shards(tmp_path):
    """A folder in several files, and its index."""
    saved(Case("llama", shard="20KB"), tmp_path)
    path = tmp_path / INDEX
    return tmp_path, path, json.loads(path.read_text())


def test_an_index_that_names_a_tensor_where_it_is_not(shards):
    folder, path, index = shards
    name = next(iter(index["weight_map"]))
    other = next(file for file in index["weight_map"].values() if file != index["weight_map"][name])
    index["weight_map"][name] = other
    path.write_text(json.dumps(index))
    with pytest.raises(FarflungError, match=f"{other} of the model folder lacks the tensor {name}, which") as caught:
        profile(job_of(folder), 67)
    assert "download both files again" in caught.value.hint


def test_an_index_that_names_a_file_that_is_not_there_or_leaves_a_tensor_out(shards):
    folder, path, index = shards
    name = "model.norm.weight"
    file = index["weight_map"].pop(name)
    path.write_text(json.dumps(index))
    with pytest.raises(FarflungError, match=r"the tensor model\.norm\.weight is missing"):
        profile(job_of(folder), 67)
    index["weight_map"][name] = "model-9.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(FarflungError, match=r"lacks model-9.safetensors, which model.safetensors.index.json names"):
        profile(job_of(folder), 67)
    index["weight_map"][name] = file
    index["weight_map"]["of.nobody"] = file
    index["metadata"] = {"total_size": -1}
    path.write_text(json.dumps(index))
    job = job_of(folder)
    found = initial_weights(model_of(job, None), [name], 0, weights_of(job, None))[name]
    torch.testing.assert_close(found, load_file(folder / file)[name])


def test_a_vocabulary_may_be_padded_and_not_be_too_small(tmp_path):
    saved(Case("llama"), tmp_path)
    job = job_of(tmp_path)
    assert len(profile(job, 50).layers) == 5, "the tokenizer has 50 tokens, the embedding 67 rows"

    def facts(tokens):
        return Facts(
            samples=1, validation_samples=0, context=16, vocabulary=tokens, token_dtype="uint8", steps=1,
            tokens_digest="", profile=Profile(layers=[], tied=False, family=""), artifacts={},
        )  # fmt: skip

    assert model_of(job, facts(50)).shapes["model.embed_tokens.weight"] == (67, 32)
    with pytest.raises(FarflungError, match=r"the tokenizer has 68 tokens, but the vocabulary .* has 67"):
        model_of(job, facts(68))


def test_pickled_weights_alone_are_not_opened_and_the_sentence_says_how_to_write_them_anew(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickled")
    ((_, sentence),) = pretrained_mistakes(str(tmp_path))
    assert "pickled weights alone, which farflung does not open" in sentence and ".save_pretrained(" in sentence
    ((_, sentence),) = pretrained_mistakes(str(tmp_path), "classification")
    assert "AutoModelForSequenceClassification" in sentence
    (tmp_path / "pytorch_model.bin").unlink()
    ((_, sentence),) = pretrained_mistakes(str(tmp_path))
    assert "has no *.safetensors" in sentence


def test_the_command_for_pickled_weights_works_as_it_is_typed(tmp_path, monkeypatch):
    folder = tmp_path / "a model's"
    saved(Case("llama"), folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    ((_, sentence),) = pretrained_mistakes(str(folder))
    python, option, code, argument = shlex.split(sentence.partition("weights only: ")[2])
    assert (python, option, argument) == ("python", "-c", str(folder))
    monkeypatch.setattr(sys, "argv", ["-c", argument])
    exec(compile(code, "-c", "exec"), {})
    assert not list(pretrained_mistakes(str(folder)))
    assert len(profile(job_of(folder), 67).layers) == 5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": "32"}, "config.json of the pretrained model can't be read: .*hidden_size"),
        ({"num_attention_heads": 5}, "config.json of the pretrained model can't be read: .*not a multiple"),
        ({"rope_parameters": [1]}, "config.json of the pretrained model can't be read: .*rope_parameters"),
        ({"dtype": "float7"}, "config.json of the pretrained model can't be read: .*float7"),
        ({"initializer_range": float("nan")}, "config.json of the pretrained model can't be read: .*initializer_range"),
        ({"vocab_size": "67"}, "says vocab_size = '67', which is no number of them"),
        ({"vocab_size": 67.0}, r"says vocab_size = 67\.0, which is no number of them"),
        ({"num_hidden_layers": -1}, "says num_hidden_layers = -1, which is no number of them"),
    ],
)
def test_a_configuration_with_values_of_another_kind_is_refused_in_a_sentence(tmp_path, change, said):
    values = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    values |= {"vocab_size": 67, "intermediate_size": 48, **change}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(FarflungError, match=said) as caught:
        pretrained_config(str(tmp_path))
        model_of(job_of(tmp_path), None)
    assert caught.value.hint and "\n" not in caught.value.message


def test_two_tensors_in_the_same_bytes_are_refused(tmp_path):
    saved(Case("llama"), tmp_path)
    path = tmp_path / "model.safetensors"
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    one, two = (f"model.layers.{number}.self_attn.q_proj.weight" for number in (0, 1))
    header[one]["data_offsets"] = header[two]["data_offsets"]
    changed = json.dumps(header).encode()
    path.write_bytes(len(changed).to_bytes(8, "little") + changed + raw[8 + length :])
    with pytest.raises(FarflungError, match=f"damaged header: {one} and {two} are in the same bytes"):
        profile(job_of(tmp_path), 67)
