"""Small models of every family, each in the configuration that its files are likely to have, and a few that they have
at times."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from farflung.job.schema import Job

VOCABULARY, CONTEXT = 67, 16
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LONG = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG |= {"original_max_position_embeddings": 16, "rope_theta": 1e4}
WINDOW = {"sliding_window": 5}
MIXED = {**WINDOW, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 24}
LATENT |= {"first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 4}
LATENT |= {"qk_nope_head_dim": 8, "v_head_dim": 8, "num_key_value_heads": 4}


@dataclass(frozen=True)
class Case:
    """A configuration of a family, and the form of its folder."""

    family: str
    changes: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    dtype: torch.dtype = torch.float32
    shard: str = "1GB"

    @property
    def name(self) -> str:
        return f"{self.family} {self.label}".strip()


CASES = [
    Case("gpt2"),
    Case("gpt2", {"tie_word_embeddings": False}, "untied, shards", shard="20KB"),
    Case("gpt_neox", {"rotary_pct": 0.25}, "partial rotary"),
    Case("gptj", {"rotary_dim": 4}, "partial rotary"),
    Case("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    Case("opt", {"ffn_dim": 48, "word_embed_proj_dim": 16, "do_layer_norm_before": False}, "projected"),
    Case("llama", {"rope_parameters": LONG, "tie_word_embeddings": True}, "3.x, tied"),
    Case("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16}, "biases, bf16", torch.bfloat16),
    Case("mistral", {"head_dim": 16, **WINDOW}, "window, shards", shard="20KB"),
    Case("qwen2", {"use_sliding_window": True, "max_window_layers": 1, **WINDOW}, "window"),
    Case("qwen3", {"head_dim": 16, "tie_word_embeddings": True}, "tied, fp16", torch.float16),
    Case("gemma2", {"head_dim": 16, "query_pre_attn_scalar": 16, **WINDOW}, "window, softcaps"),
    Case("gemma3_text", {"head_dim": 16, "query_pre_attn_scalar": 16, **MIXED}, "window, two rotary tables"),
    Case("phi", {}, "partial rotary"),
    Case("phi3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "4"),
    Case("olmo2"),
    Case("granite", {"embedding_multiplier": 3.0, "residual_multiplier": 0.3, "logits_scaling": 4.0}, "multipliers"),
    Case("smollm3", {"no_rope_layer_interval": 2}, "no rotary in some"),
    Case("starcoder2", WINDOW, "window"),
    Case("falcon"),
    Case("falcon", {"alibi": True, "new_decoder_architecture": True, "num_kv_heads": 2}, "alibi"),
    Case("bloom"),
    Case("mpt", {"expansion_ratio": 2, "max_seq_len": 64}),
    Case("mixtral", {"num_local_experts": 4}),
    Case("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 24}),
    Case("qwen3_moe", {**EXPERTS, "head_dim": 8}, "shards", shard="20KB"),
    Case("olmoe", EXPERTS),
    Case("deepseek_v3", LATENT, "latent attention, a dense block"),
    Case("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, **WINDOW}),
]


def configuration(case: Case) -> Any:
    """The configuration of `transformers`."""
    kind = transformers.CONFIG_MAPPING[case.family]
    own, known = kind.attribute_map, kind()
    values = {own.get(key, key): value for key, value in SMALL.items() if hasattr(known, own.get(key, key))}
    return kind(**{**values, **case.changes})


def saved(case: Case, folder: Path) -> Any:
    """A model with random weights, also in its norms and biases, saved in ``folder``, with the values there."""
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(configuration(case))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            parameter.copy_(parameter.to(case.dtype))
        kept = model.state_dict()
        for name, buffer in model.named_buffers():
            if name in kept:  # as what corrects DeepSeek's routers
                buffer.uniform_(-0.1, 0.1)
    copy.deepcopy(model).to(case.dtype).save_pretrained(folder, max_shard_size=case.shard)
    return model.eval()  # folders' configurations have dropouts


def job_of(folder: Path, **lora: Any) -> Job:
    """A job that fine-tunes the folder."""
    model: dict[str, Any] = {"pretrained": str(folder), "context": CONTEXT, **({"lora": lora} if lora else {})}
    return Job.model_validate({"model": model, "data": {"text": ["none"]}, "train": {"batch": 4, "microbatch": 2}})


def table() -> str:
    """The table of docs/how-to/models.md: a row a family, whose every mark is a test of tests/node/models/zoo."""
    families = dict.fromkeys(case.family for case in CASES)
    columns = (
        "family",
        "small models that are tested",
        "load",
        "logits",
        "gradients",
        "export",
        "LoRA",
        "NF4",
        "generate",
    )
    rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for family in families:
        labels = "; ".join(case.label or "as its configuration is" for case in CASES if case.family == family)
        packed = "its linear layers are of a class of its own" if family == "falcon" else "✓"
        rows.append(f"| {family} | {labels} |" + " ✓ |" * 5 + f" {packed} | ✓ |")
    return "\n".join(rows)
