"""Checkpoints as folders that `transformers` loads, and text from them."""

import json
import sys
import weakref

import peft
import pytest
import torch
import transformers
from plain_lora import save_base
from safetensors.torch import load_file, save_file

from farflung.job.data.facts import Facts, Profile
from farflung.job.schema import Job
from farflung.node.generation import export as exporting
from farflung.node.generation import generate as generating
from farflung.node.generation.byte_tokenizer import write_byte_tokenizer
from farflung.node.generation.checkpoint import find_checkpoint
from farflung.node.generation.export import export
from farflung.node.generation.generate import generate
from farflung.node.models.factory import model_of
from farflung.node.models.weights.pretrained import initial_weights, weights_of
from farflung.proto.errors import FarflungError

TEXTS = ["To be, or not to be", "", "naïve — 文字 🎭\n\ttabs  and   spaces \x00\x7f", "ſ̈ é\u2028"]


def facts_of(vocabulary=256, context=16):
    return Facts(
        samples=4,
        validation_samples=1,
        context=context,
        vocabulary=vocabulary,
        token_dtype="uint8",
        steps=1,
        tokens_digest="",
        profile=Profile(layers=[], tied=False, family="gpt2"),
        artifacts={},
    )


def fresh_job(family="gpt2", **model):
    shape = {"layers": 2, "width": 16, "heads": 2, "context": 16, **model}
    return Job.model_validate({"model": {"family": family, **shape}, "data": {"text": ["none"]}})


def write_checkpoint(state, job, facts, step, weights, ranges):
    """As nodes and coordinator write it: one file a stage, the optimiser's tensors beside the parameters."""
    folder = state / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    definition = model_of(job, facts)
    files = {}
    for index, (first, last) in enumerate(ranges):
        names = definition.parameter_names(first, last)
        tensors = {name: weights[name] for name in names if index == 0 or name != definition.tied}
        tensors.update({f"optimizer.exp_avg.{name}": torch.zeros(3) for name in names})
        save_file(tensors, folder / f"stage-{index}.safetensors")
        files[f"stage-{index}.safetensors"] = "digest"
    manifest = {
        "step": step,
        "files": files,
        "job": json.loads(job.model_dump_json()),
        "facts": facts.model_dump_json(),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("family", "tie"),
    [("gpt2", None), ("gpt2", False), ("llama", True), ("mistral", None), ("qwen2", None), ("gpt_neox", None)],
)
def test_a_fresh_model_loads_with_the_same_numbers(tmp_path, family, tie):
    job, facts = fresh_job(family, tie=tie), facts_of()
    definition = model_of(job, facts)
    weights = {name: definition.initial(name, 4) for name in definition.shapes}
    write_checkpoint(tmp_path, job, facts, 7, weights, [(0, 1), (2, 3)])
    folder = export(tmp_path, tmp_path / "out")
    (tmp_path / "any").touch()
    assert {path.stat().st_mode for path in folder.iterdir()} == {(tmp_path / "any").stat().st_mode}
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    stage = definition.build(0, 3)
    stage.load_state_dict(weights)
    ids = torch.arange(16)[None]
    torch.testing.assert_close(model(ids).logits, stage(ids), rtol=0, atol=1e-6)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer("Ah!").input_ids == list(b"Ah!")
    assert model.dtype == torch.float32
    assert transformers.GenerationConfig.from_pretrained(folder).eos_token_id is None


def test_large_models_are_written_in_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "LARGEST_FILE", 8000)
    job, facts = fresh_job(), facts_of()
    definition = model_of(job, facts)
    weights = {name: definition.initial(name, 4) for name in definition.shapes}
    write_checkpoint(tmp_path, job, facts, 7, weights, [(0, 3)])
    folder = export(tmp_path, tmp_path / "out")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, weights[name])


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shard", ["1GB", "4KB"])
def test_an_untrained_pretrained_model_comes_out_bit_for_bit(tmp_path, family, dtype, shard):
    source, tokens = tmp_path / "source", tmp_path / "tokenizer"
    torch.manual_seed(2)
    job = fresh_job(family)
    model = transformers.AutoModelForCausalLM.from_config(model_of(job, facts_of()).config).to(dtype)
    model.save_pretrained(source, max_shard_size=shard)
    tokens.mkdir()
    write_byte_tokenizer(tokens, 16)
    job = Job.model_validate(
        {"model": {"pretrained": str(source), "context": 16}, "data": {"text": ["none"], "tokenizer": str(tokens)}}
    )
    definition, facts = model_of(job, facts_of()), facts_of()
    weights = initial_weights(definition, list(definition.shapes), 0, weights_of(job, None))
    write_checkpoint(tmp_path, job, facts, 0, weights, [(0, 1), (2, 3)])
    folder = export(tmp_path, tmp_path / "out", step=0)
    files = sorted(path.name for path in source.glob("*.safetensors"))
    assert sorted(path.name for path in folder.glob("*.safetensors")) == files
    for file in files:
        before, after = load_file(source / file), load_file(folder / file)
        assert before.keys() == after.keys()
        for name, tensor in before.items():
            assert after[name].dtype == tensor.dtype
            assert torch.equal(after[name].view(torch.uint8), tensor.view(torch.uint8))
    assert (folder / "config.json").read_bytes() == (source / "config.json").read_bytes()
    assert (folder / "tokenizer.json").read_bytes() == (tokens / "tokenizer.json").read_bytes()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded[name].to(dtype), tensor)


def test_the_byte_tokenizer_gives_back_any_text(tmp_path):
    write_byte_tokenizer(tmp_path, 128)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        ids = tokenizer(text).input_ids
        assert ids == list(text.encode())
        assert tokenizer.decode(ids) == text
    assert tokenizer.vocab_size == 256 and tokenizer.model_max_length == 128
    assert tokenizer.decode(range(256)).startswith("\x00\x01")


def test_text_longer_than_the_context(tmp_path):
    job, facts = fresh_job(), facts_of()
    definition = model_of(job, facts)
    weights = {name: definition.initial(name, 4) for name in definition.shapes}
    write_checkpoint(tmp_path, job, facts, 7, weights, [(0, 3)])
    one = generate(tmp_path, "ROMEO", tokens=40, seed=3)
    assert one and not one.startswith("ROMEO")
    assert generate(tmp_path, "ROMEO", tokens=40, seed=3) == one
    assert generate(tmp_path, "ROMEO", tokens=40, seed=4) != one
    folder = export(tmp_path, tmp_path / "out")
    assert generate(folder, "ROMEO", tokens=40, seed=3) == one
    long = "a prompt that is longer than the context"
    assert generate(folder, long, tokens=5, temperature=0) == generate(folder, long, tokens=5, temperature=0, seed=9)
    with pytest.raises(FarflungError, match="the prompt is empty"):
        generate(folder, "")


@pytest.mark.parametrize(("family", "tie"), [("gpt2", True), ("llama", False), ("gpt_neox", None)])
def test_one_layer_after_the_other_writes_the_same_text(tmp_path, monkeypatch, family, tie):
    job, facts = fresh_job(family, tie=tie), facts_of()
    definition = model_of(job, facts)
    weights = {name: 5 * definition.initial(name, 4) for name in definition.shapes}
    write_checkpoint(tmp_path, job, facts, 7, weights, [(0, 1), (2, 3)])
    prompt = "ROMEO: wherefo"  # two tokens under the context, in which the window moves on
    alive: list[weakref.ref] = []
    build = type(definition).build

    def watched(self, first, last, device="cpu"):
        assert first == last and not any(one() is not None for one in alive), "more than one layer in memory"
        alive[:] = [weakref.ref(stage := build(self, first, last, device))]
        return stage

    for temperature in (0, 0.8):
        whole = generate(tmp_path, prompt, 4, 3, temperature, through="model")
        with monkeypatch.context() as patched:
            patched.setattr(type(definition), "build", watched)
            assert generate(tmp_path, prompt, 4, 3, temperature, through="layers") == whole
    assert alive
    said = []
    monkeypatch.setattr(generating, "available_memory", lambda: 1000)
    assert generate(tmp_path, prompt, 4, 3, say=said.append) == whole
    assert "one layer after the other" in said[0]
    with pytest.raises(FarflungError, match="which is loaded whole"):
        generate(export(tmp_path, tmp_path / "out"), "ROMEO", through="layers")


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # peft reads it
@pytest.mark.parametrize(("family", "dora"), [("llama", False), ("llama", True), ("gpt2", True)])
def test_layers_of_a_model_with_adapters(tmp_path, family, dora):
    save_base(tmp_path / "base", family)
    job = Job.model_validate(
        {
            "model": {"pretrained": str(tmp_path / "base"), "context": 16, "lora": {"rank": 2, "dora": dora}},
            "data": {"text": ["none"]},
        }
    )
    facts = facts_of()
    torch.manual_seed(5)
    adapters = {name: torch.randn(shape) for name, shape in model_of(job, facts).shapes.items()}
    write_checkpoint(tmp_path / "state", job, facts, 7, adapters, [(0, 1)])
    whole, by_layers = (
        generate(tmp_path / "state", "ROMEO", 8, temperature=0, through=way) for way in ("model", "layers")
    )
    assert whole == by_layers
    folder = export(tmp_path / "state", tmp_path / "adapter")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    loaded = peft.PeftModel.from_pretrained(base, folder).eval()
    merged = export(tmp_path / "state", tmp_path / "merged", merge=True)
    alone = transformers.AutoModelForCausalLM.from_pretrained(merged).eval()
    ids = torch.arange(16)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded(input_ids=ids).logits, alone(input_ids=ids).logits, rtol=1e-4, atol=1e-4)
    write_byte_tokenizer(tmp_path / "base", 16)
    assert whole != generate(tmp_path / "base", "ROMEO", 8, temperature=0)


def test_a_build_is_plain_weights_with_a_note(tmp_path, monkeypatch):
    (tmp_path / "tiny.py").write_text(
        "from torch import nn\n\ndef model():\n    return nn.Sequential(nn.Linear(2, 3)), nn.MSELoss(reduction='sum')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    job = Job.model_validate({"model": {"build": "tiny:model"}, "data": {"build": "tiny:model"}})
    weights = {"0.weight": torch.randn(3, 2), "0.bias": torch.zeros(3)}
    write_checkpoint(tmp_path, job, facts_of(), 5, weights, [(0, 0)])
    folder = export(tmp_path, tmp_path / "out")
    assert torch.equal(load_file(folder / "model.safetensors")["0.weight"], weights["0.weight"])
    assert "tiny:model after step 5" in (folder / "README.md").read_text()
    with pytest.raises(FarflungError, match="is no language model"):
        generate(tmp_path, "x")
    sys.modules.pop("tiny")


def test_what_can_not_be_exported_is_said(tmp_path):
    job, facts = fresh_job(), facts_of()
    with pytest.raises(FarflungError, match="there is no folder"):
        find_checkpoint(tmp_path / "nowhere")
    with pytest.raises(FarflungError, match="has no complete checkpoint"):
        find_checkpoint(tmp_path)
    definition = model_of(job, facts)
    weights = {name: definition.initial(name, 4) for name in definition.shapes}
    write_checkpoint(tmp_path, job, facts, 7, weights, [(0, 1)])
    with pytest.raises(FarflungError, match="no checkpoint of step 8") as caught:
        find_checkpoint(tmp_path, 8)
    assert "it has the steps 7" in caught.value.hint
    with pytest.raises(FarflungError, match=r"lacks the tensor transformer\.h\.1"):
        export(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(FarflungError, match="exists already"):
        export(tmp_path, tmp_path / "full")
