"""Conversations from a file to a model folder: two real node processes, and the loss of transformers in this one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models, pre_tokenizers, trainers

from farflung.__main__ import app
from farflung.cli.common import execute
from farflung.job.data.marks import FIRST, TRAINED, tokens_of
from farflung.node.generation.checkpoint import find_checkpoint
from farflung.node.generation.export import export

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
COLOURS = ("red", "green", "blue", "white", "black")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A small llama folder with a tokenizer that has a chat template."""
    rust = Rust(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    rust.train_from_iterator(
        ["user\nassistant\n" + " ".join(COLOURS)] * 9,
        trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet),
    )
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=rust, eos_token="<|im_end|>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path / "base")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def held_out_loss(state: Path, folder: Path) -> float:
    """The mean loss of what is learnt in the held-out samples, each conversation by itself."""
    facts = find_checkpoint(state).facts
    assert facts is not None
    rows = np.fromfile(state / "artifacts" / facts.tokens_digest, "<u4").reshape(-1, facts.context + 1)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for row in rows[facts.samples :]:
            for one in np.split(row, np.flatnonzero(row & FIRST)[1:]):
                ids = torch.from_numpy(tokens_of(one))[None]
                labels = torch.where(torch.from_numpy((one & TRAINED) > 0), ids, -100)
                if (trained := int((labels[:, 1:] != -100).sum())) > 0:
                    total += float(model(input_ids=ids, labels=labels).loss) * trained
                    count += trained
    return total / count


def test_from_conversations_to_a_model_folder(
    base: Path, local_run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    talks = [
        {"messages": [{"role": "user", "content": f"after {a}"}, {"role": "assistant", "content": b}]}
        for _ in range(12)
        for a, b in zip(COLOURS, (*COLOURS[1:], COLOURS[0]), strict=True)
    ]
    (tmp_path / "talks.jsonl").write_text("".join(json.dumps(talk) + "\n" for talk in talks))
    words = ["job", "init", "job.toml", "--pretrained", "base", "--data", "talks.jsonl"]
    assert execute(app, words) == 0
    job = (tmp_path / "job.toml").read_text()
    for old, new in (
        ("epochs = 5 ", "steps = 6 "),
        ("learning_rate = 5e-5", "learning_rate = 1e-2"),
        ("warmup_steps = 50", "warmup_steps = 0"),
        ('mode = "delta"', 'mode = "gradient"'),
        ("overlap = 1", "overlap = 0"),
        ("\nevery = 5 ", "\nevery = 1 "),
        ("fragments = 5", "fragments = 1"),
        ('codec = "eden:bits=1,biased=true"', 'codec = "none"'),
        ('forward = "auto"', 'forward = "none"'),
        ('backward = "int8"', 'backward = "none"'),
        ("batch = 32 ", "batch = 4 "),
        ("microbatch = 4", "microbatch = 2"),
        ('stages = "auto"', "stages = 2"),
        ('pipelines = "auto"', "pipelines = 1"),
        ("validation = 0.05", "validation = 0.2"),
    ):
        assert old in job, old
        job = job.replace(old, new)
    (tmp_path / "job.toml").write_text(job)
    state = tmp_path / "state"
    done = local_run("job.toml", "--nodes", "2", "--state", str(state), cwd=tmp_path)
    assert done.status == 0, done.stderr
    steps = [event for event in done.events if event["event"] == "step"]
    assert steps[-1]["loss"] < steps[0]["loss"] - 0.5
    facts = find_checkpoint(state).facts
    assert facts is not None and facts.packed
    mean = facts.trained / facts.samples
    for event in steps:  # what is learnt is counted, and not what is read
        assert event["tokens_per_second"] * event["seconds"] < 4 * 2 * mean < 4 * facts.context
    (evaluated,) = [event for event in done.events if event["event"] == "eval"]
    folder = export(state, tmp_path / "tuned")
    assert evaluated["loss"] == pytest.approx(held_out_loss(state, folder), abs=1e-4)
    tuned = transformers.AutoTokenizer.from_pretrained(folder)
    assert tuned.chat_template == TEMPLATE
