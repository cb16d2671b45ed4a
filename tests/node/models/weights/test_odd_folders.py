"""Folders in the odd forms that people publish: each works, or one sentence says what to do."""

import json

import pytest
import torch
from safetensors.torch import load_file
from small_models import Case, job_of, saved

from farflung.job.checks.model import pretrained_mistakes
from farflung.job.data.facts import Facts, Profile
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
    (tmp_path / "pytorch_model.bin").unlink()
    ((_, sentence),) = pretrained_mistakes(str(tmp_path))
    assert "has no *.safetensors" in sentence
