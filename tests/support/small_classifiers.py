"""Small encoders and decoders with a head for classes, and texts for them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
import transformers

from farflung.job.data.marks import IGNORED
from farflung.job.schema import Job

RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 20}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "deberta (v1)": ("deberta", RELATIVE),
    "deberta-v2": ("deberta-v2", RELATIVE),
    "deberta-v2 (v3)": (
        "deberta-v2",
        {**RELATIVE, "position_buckets": 4, "share_att_key": True, "norm_rel_ebd": "layer_norm"},
    ),
    "deberta-v2, absolute positions": ("deberta-v2", {}),
}
CLASSIFIERS = ("bert", "roberta", "distilbert", "electra", *VARIANTS, "gpt2", "llama", "opt")
NAMES = ["no", "maybe", "yes"]
_SHAPE = {
    "vocab_size": 67, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 40, "initializer_range": 0.2, "type_vocab_size": 2, "pad_token_id": 1,
    "bos_token_id": 2, "eos_token_id": 3, "num_key_value_heads": 1, "ffn_dim": 24, "word_embed_proj_dim": 16,
}  # fmt: skip
KINDS = torch.tensor([[1] * 9 + [0] * 3, [1] * 4 + [2] * 8, [1] * 6 + [2] * 5 + [0]])
"""A text with padding, two texts without, two with."""
IDS = torch.where(KINDS == 0, 1, torch.randint(5, 67, KINDS.shape, generator=torch.Generator().manual_seed(3)))
LABELS = torch.tensor([0, 2, 1])
TARGETS = torch.cat([torch.full((3, KINDS.shape[1] - 1), IGNORED), LABELS[:, None]], 1)


def adapters_for(family: str) -> dict[str, Any]:
    """A table ``[model.lora]`` for a family. `peft` has no default for DistilBERT's matrices."""
    return {"rank": 2, **({"targets": ["q_lin", "v_lin"]} if family == "distilbert" else {})}


def saved(family: str, folder: Path, **changes: Any) -> Any:
    """A model with random weights of three classes, saved in ``folder``."""
    family, more = VARIANTS.get(family, (family, {}))
    changes = {**more, **changes}
    kind = transformers.CONFIG_MAPPING[family]
    own, known = kind.attribute_map, kind()
    values = {own.get(key, key): value for key, value in _SHAPE.items() if hasattr(known, own.get(key, key))}
    torch.manual_seed(1)
    model = transformers.AutoModelForSequenceClassification.from_config(kind(**{**values, "num_labels": 3, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model.eval()


def keywords_of(model: Any) -> dict[str, torch.Tensor]:
    """What its tokenizer would say beside the tokens of IDS."""
    return keywords_for(model, KINDS)


def keywords_for(model: Any, kinds: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same of tokens of these ``kinds``."""
    types = "token_type_ids" in inspect.signature(type(model).forward).parameters
    types = types and getattr(model.config, "type_vocab_size", 0) > 1
    more = {"token_type_ids": (kinds - 1).clamp(min=0)} if types else {}
    return {"attention_mask": (kinds != 0).long(), **more}


def job_of(folder: Path, lora: dict[str, Any] | None = None, **train: Any) -> Job:
    """A job that fine-tunes the folder. ``lora``: the table of its adapters."""
    words = {"batch": 4, "microbatch": 2, "task": "classification", **train}
    model = {"pretrained": str(folder), "context": KINDS.shape[1], **({"lora": lora} if lora is not None else {})}
    return Job.model_validate({"model": model, "data": {"labelled": ["none"], "classes": NAMES}, "train": words})


def table() -> str:
    """The table of docs/how-to/classify.md: a row a family, whose every mark is a test of test_classifiers.py."""
    columns = ("family", "load", "logits", "gradients", "dropout", "export", "[model.lora]")
    rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    rows += [f"| {family} |" + " ✓ |" * 6 for family in CLASSIFIERS]
    return "\n".join(rows)
