"""The loss of chats beside trl's: the same model, conversations and batch through farflung and through SFTTrainer.

    pip install trl                       into a throwaway environment beside farflung's
    python -m benchmarks.chat_loss        prints both losses and their difference; ends with 1 where that is over 1e-5

The tokenizer's template marks the assistant's turns, which alone are learnt (``assistant_only_loss`` of trl). farflung
cuts the model into one and into two stages; each sample is one conversation (``pack = false``), padded in trl.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from farflung.job.schema import Job
from farflung.node.data.dataset import Tokens
from farflung.node.models.factory import model_of
from farflung.node.models.weights.pretrained import initial_weights, weights_of

from .quality import prepared
from .text import make_tokenizer, sources

TEMPLATE = (
    "{% for m in messages %}{{ '<s>' + m['role'] + '\n' }}{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] + '<end>' }}{% endgeneration %}{% else %}{{ m['content'] + '<end>' }}{% endif %}"
    "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)
MOST = 1e-5
CONTEXT = 127


def base(folder: Path) -> None:
    """A small llama with a tokenizer and a template."""
    import transformers

    make_tokenizer(folder, [sources(200_000)], 512)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template, tokenizer.pad_token = TEMPLATE, "<end>"
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def conversations(count: int) -> list[dict[str, Any]]:
    """Conversations of one to three turns."""
    chance = random.Random(1)
    words = ("sea", "deep", "how", "the", "is", "3,700 m", "on average", "and", "why", "salt")

    def text() -> str:
        return " ".join(chance.choices(words, k=chance.randint(1, 9)))

    return [
        {
            "messages": [
                {"role": role, "content": text()} for _ in range(chance.randint(1, 3)) for role in ("user", "assistant")
            ]
        }
        for _ in range(count)
    ]


def ours(folder: Path, chats: Path, stages: tuple[tuple[int, int], ...]) -> tuple[float, int]:
    """(mean loss, tokens learnt) of all conversations through these stages."""
    job = Job.model_validate(
        {
            "run": {"name": "chats", "steps": 1},
            "model": {"pretrained": str(folder), "context": CONTEXT},
            "data": {"chat": [str(chats)], "tokenizer": str(folder), "pack": False},
            "train": {"batch": 4, "microbatch": 4},
        }
    )
    facts, artifacts = prepared(job, folder.parent / "state")

    def fetch(name: str, offset: int = 0, length: int | None = None) -> bytes:
        return artifacts[name][offset : None if length is None else offset + length]

    definition = model_of(job, facts, None)
    tokens, targets, places = Tokens(facts, fetch).placed(list(range(facts.samples + facts.validation_samples)))
    values, weights = tokens, weights_of(job, None)
    assert weights is not None
    with torch.no_grad():
        for first, last in stages:
            stage = definition.build(first, last).eval()
            found = initial_weights(definition, definition.parameter_names(first, last), 0, weights)
            for name, parameter in stage.named_parameters():
                parameter.copy_(found[name])
            values = stage(values) if places is None else stage(values, places)
        count = stage.target_count(targets)
        return float(stage.loss_sum(values, targets)) / count, count


def theirs(folder: Path, rows: list[dict[str, Any]]) -> tuple[float, int]:
    """The same through trl's trainer, in one batch."""
    import datasets
    import transformers
    import trl

    with tempfile.TemporaryDirectory() as out:
        settings = trl.SFTConfig(
            output_dir=out, max_length=CONTEXT + 1, assistant_only_loss=True, report_to=[], use_cpu=True, bf16=False
        )
        trainer = trl.SFTTrainer(
            model=transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
            processing_class=transformers.AutoTokenizer.from_pretrained(folder),
            args=settings,
            train_dataset=datasets.Dataset.from_list(rows),
        )
        batch = trainer.data_collator(list(trainer.train_dataset))
        trainer.model.eval()
        with torch.no_grad():
            return float(trainer.compute_loss(trainer.model, batch)), int((batch["labels"][:, 1:] != -100).sum())


def main() -> None:
    rows = conversations(24)
    with tempfile.TemporaryDirectory() as place:
        folder, chats = Path(place) / "base", Path(place) / "chats.jsonl"
        base(folder)
        chats.write_text("".join(json.dumps(row) + "\n" for row in rows))
        there = theirs(folder, rows)
        worst = 0.0
        for stages in (((0, 5),), ((0, 2), (3, 5))):
            here = ours(folder, chats, stages)
            worst = max(worst, abs(here[0] - there[0]) if here[1] == there[1] else float("inf"))
            words = f"{len(stages)} stage{'s'[: len(stages) - 1]}: farflung {here[0]:.7f} of {here[1]} tokens"
            print(f"{words}, trl {there[0]:.7f} of {there[1]}, difference {here[0] - there[0]:+.1e}")
    sys.exit(worst > MOST)


if __name__ == "__main__":
    main()
