"""Model folders: reading a stage's tensors by range, and what is said about a folder that is wrong."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from farflung.job.data.facts import Facts, Profile
from farflung.job.schema import Job
from farflung.node.models.factory import model_of
from farflung.node.models.profiling.cost import profile
from farflung.node.models.weights import pretrained
from farflung.proto.errors import FarflungError

SHAPES = {
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "tie_word_embeddings": True},
    "llama": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 24,
        "max_position_embeddings": 32,
    },
    "gpt_neox": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 32,
    },
}


def save_model(folder, family, dtype=torch.float32, shard="1GB", **changes):
    torch.manual_seed(1)
    values = {"vocab_size": 50, "bos_token_id": None, "eos_token_id": None, **SHAPES[family], **changes}
    config = transformers.AutoConfig.for_model(family, **values)
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype)
    model.save_pretrained(folder, max_shard_size=shard)
    return model.eval()


def job_of(folder, context=16):
    return Job.model_validate({"model": {"pretrained": str(folder), "context": context}, "data": {"text": ["none"]}})


def facts_of(folder, context=16):
    return Facts(
        samples=4,
        validation_samples=1,
        context=context,
        vocabulary=50,
        token_dtype="uint8",
        steps=1,
        tokens_digest="",
        profile=Profile(layers=[], tied=False, family="gpt2"),
        artifacts={f"model/{path.name}": "" for path in folder.iterdir()},
    )


class CountingFetch:
    def __init__(self, folder):
        self.inner = pretrained.folder_fetch(folder)
        self.bytes = 0

    def __call__(self, name, offset=0, length=None):
        data = self.inner(name, offset, length)
        self.bytes += len(data)
        return data


@pytest.mark.parametrize("family", list(SHAPES))
@pytest.mark.parametrize("shard", ["1GB", "4KB"])
def test_stages_get_their_tensors_and_nothing_else(tmp_path, family, shard):
    model = save_model(tmp_path, family, shard=shard)
    assert (tmp_path / pretrained.INDEX).exists() == (shard == "4KB")
    job, facts, fetch = job_of(tmp_path), facts_of(tmp_path), CountingFetch(tmp_path)
    definition = model_of(job, facts, fetch)
    ids = torch.arange(16)[None]
    hidden = ids
    for first, last in ((0, 1), (2, 3)):
        stage = definition.build(first, last)
        names = definition.parameter_names(first, last)
        before = fetch.bytes
        weights = pretrained.initial_weights(definition, names, 0, pretrained.weights_of(job, facts, fetch))
        own = sum(4 * tensor.numel() for tensor in weights.values())
        assert own <= fetch.bytes - before < own + 12_000  # headers, index and config.json beside the tensors
        stage.load_state_dict(weights, strict=True)
        hidden = stage(hidden)
    torch.testing.assert_close(hidden, model(ids).logits, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_read_exactly(tmp_path, dtype):
    model = save_model(tmp_path, "llama", dtype)
    job = job_of(tmp_path)
    definition = model_of(job, None)
    weights = pretrained.initial_weights(definition, list(definition.shapes), 0, pretrained.weights_of(job, None))
    for name, parameter in model.named_parameters():
        assert weights[name].dtype == torch.float32
        assert torch.equal(weights[name].to(dtype), parameter.detach())


def test_names_of_a_folder_saved_from_the_base_model(tmp_path):
    model = save_model(tmp_path, "gpt2")
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors"
    )
    job = job_of(tmp_path)
    definition = model_of(job, None)
    weights = pretrained.initial_weights(definition, [str(definition.tied)], 0, pretrained.weights_of(job, None))
    assert torch.equal(weights["transformer.wte.weight"], model.transformer.wte.weight.detach())


def test_the_profile_counts_every_weight(tmp_path):
    model = save_model(tmp_path, "gpt2")
    result = profile(job_of(tmp_path), 50)
    assert result.tied and result.family == "gpt2" and len(result.layers) == 4
    counted = sum(layer.parameters for layer in result.layers) - model.transformer.wte.weight.numel()
    assert counted == sum(parameter.numel() for parameter in model.parameters())
    assert [layer.activation_elements_per_sample for layer in result.layers] == [256, 256, 256, 0]
    assert result.layers[1].flops_per_sample == 6 * 16 * result.layers[1].parameters + 12 * 16 * 16 * 16


def damage_missing(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")


def damage_shape(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(17)
    save_file(tensors, folder / "model.safetensors")


def damage_type(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(16, dtype=torch.int8)
    save_file(tensors, folder / "model.safetensors")


def damage_weights(folder):
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)


def damage_config(folder):
    (folder / "config.json").write_text("{")


def damage_family(folder):
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "model_type": "optt"}))


def damage_end(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def damage_beyond(folder):
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"more")


def damage_pointer(folder):
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (folder / "model.safetensors").write_text(text)


def remove_weights(folder):
    (folder / "model.safetensors").unlink()


def remove_config(folder):
    (folder / "config.json").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_missing, r"the tensor model.layers.1.mlp.up_proj.weight is missing"),
        (damage_shape, r"model.norm.weight has the shape \[17\], the configuration says \[16\]"),
        (damage_type, r"model.norm.weight has the type I8, not one of F32, F16, BF16"),
        (damage_weights, r"model.safetensors of the model folder is no safetensors file"),
        (damage_end, r"model.safetensors is cut off: it has \d+ bytes, its header says \d+"),
        (damage_beyond, r"model.safetensors has something behind its end"),
        (damage_pointer, r"model.safetensors of the model folder is a Git LFS pointer"),
        (damage_config, r"config.json of the model folder is no JSON"),
        (damage_family, r"the model family 'optt' is not supported.*it knows 'opt'"),
        (remove_weights, r"has neither model.safetensors nor model.safetensors.index.json"),
        (remove_config, r"config.json can't be read: No such file"),
    ],
)
def test_a_wrong_folder_is_named_in_one_sentence(tmp_path, damage, message):
    save_model(tmp_path, "llama")
    damage(tmp_path)
    with pytest.raises(FarflungError, match=message) as caught:
        profile(job_of(tmp_path), 50)
    assert caught.value.hint


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
def test_a_tied_configuration_with_another_head_in_the_file(tmp_path, family):
    """transformers takes the two for two; an equal copy of the embedding is no second head."""
    save_model(tmp_path, family, tie_word_embeddings=False)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "tie_word_embeddings": True}))
    with pytest.raises(FarflungError, match="ties the head to the embedding, but") as caught:
        profile(job_of(tmp_path), 50)
    assert '"tie_word_embeddings": false' in str(caught.value.hint)
    tensors = load_file(tmp_path / "model.safetensors")
    embedding = next(name for name in tensors if name.split(".")[-2] in ("wte", "embed_tokens", "embed_in"))
    head = next(name for name in tensors if name in ("lm_head.weight", "embed_out.weight"))
    tensors[head] = tensors[embedding].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    assert profile(job_of(tmp_path), 50).tied


def test_a_single_file_counts_before_an_index_as_in_transformers(tmp_path):
    """The shards are of an older model."""
    save_model(tmp_path, "gpt2", shard="4KB")
    torch.manual_seed(7)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    newer = transformers.AutoModelForCausalLM.from_config(config)
    save_file(
        {name: tensor.detach().clone() for name, tensor in newer.named_parameters()}, tmp_path / "model.safetensors"
    )
    job = job_of(tmp_path)
    weights = pretrained.weights_of(job, None)
    found = pretrained.initial_weights(model_of(job, None), ["transformer.wte.weight"], 0, weights)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(found["transformer.wte.weight"], loaded.transformer.wte.weight.detach())
    assert torch.equal(found["transformer.wte.weight"], newer.transformer.wte.weight.detach())


def test_what_a_folder_can_not_do_is_refused(tmp_path):
    save_model(tmp_path, "llama")
    with pytest.raises(FarflungError, match="context = 64, but the pretrained model's longest is 32"):
        profile(job_of(tmp_path, context=64), 50)
    with pytest.raises(FarflungError, match="the tokenizer has 51 tokens"):
        profile(job_of(tmp_path), 51)
