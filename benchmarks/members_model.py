"""The passes of several members at once: one GPT-2 or llama whose every parameter has a row for each member.

On one core a step of four members of a tiny model takes the time of one model's step with their whole batch, because
their small matrices are multiplied in batches. Each member has its own samples and its own weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def loss_sum(family: str, config: Any, p: Mapping[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
    """Sum of the cross entropy over all members' targets, a scalar.

    Args:
        family: "gpt2" or "llama". config: the configuration that transformers' class has.
        p: each parameter by its name, fp32 [members, *shape].
        inputs, targets: int64 [members, samples, tokens].
    """
    logits = {"gpt2": _gpt2, "llama": _llama}[family](config, p, inputs)
    return functional.cross_entropy(logits.flatten(0, 1), targets.reshape(-1), reduction="sum")


def _looked_up(table: Tensor, inputs: Tensor) -> Tensor:
    """Rows of each member's table [members, rows, width] for its tokens: [members, samples, tokens, width]."""
    members, rows, _ = table.shape
    first = torch.arange(members).mul_(rows)[:, None, None]
    return functional.embedding(inputs + first, table.flatten(0, 1))


def _attention(q: Tensor, k: Tensor, v: Tensor, members: int) -> Tensor:
    """Causal attention of [members * samples, heads, tokens, head width]; [members, samples * tokens, width]."""
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    return mixed.reshape(members, -1, mixed.shape[2] * mixed.shape[3])


def _gpt2(config: Any, p: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    members, samples, tokens = inputs.shape
    width, heads = config.n_embd, config.n_head

    def normed(h: Tensor, name: str) -> Tensor:
        whitened = functional.layer_norm(h, (width,), eps=config.layer_norm_epsilon)
        return whitened * p[f"{name}.weight"][:, None] + p[f"{name}.bias"][:, None]

    def linear(h: Tensor, name: str) -> Tensor:
        return torch.baddbmm(p[f"{name}.bias"][:, None], h, p[f"{name}.weight"])

    h = _looked_up(p["transformer.wte.weight"], inputs) + p["transformer.wpe.weight"][:, None, :tokens]
    h = h.view(members, samples * tokens, width)
    for number in range(config.n_layer):
        block = f"transformer.h.{number}"
        qkv = linear(normed(h, f"{block}.ln_1"), f"{block}.attn.c_attn")
        q, k, v = qkv.view(members * samples, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        h = h + linear(_attention(q, k, v, members), f"{block}.attn.c_proj")
        inner = functional.gelu(linear(normed(h, f"{block}.ln_2"), f"{block}.mlp.c_fc"), approximate="tanh")
        h = h + linear(inner, f"{block}.mlp.c_proj")
    return torch.bmm(normed(h, "transformer.ln_f"), p["transformer.wte.weight"].mT)


def _llama(config: Any, p: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    members, samples, tokens = inputs.shape
    width, heads = config.hidden_size, config.num_attention_heads
    each = width // heads
    base = getattr(config, "rope_theta", None) or config.rope_parameters["rope_theta"]
    angles = torch.arange(tokens)[:, None] * base ** (-torch.arange(0, each, 2) / each)
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

    def normed(h: Tensor, name: str) -> Tensor:
        return h * (h.square().mean(-1, keepdim=True) + config.rms_norm_eps).rsqrt() * p[f"{name}.weight"][:, None]

    def linear(h: Tensor, name: str) -> Tensor:
        return torch.bmm(h, p[f"{name}.weight"].mT)

    def split(h: Tensor, turned: bool) -> Tensor:
        h = h.view(members * samples, tokens, -1, each).transpose(1, 2)
        if not turned:
            return h
        return h * cos + torch.cat([-h[..., each // 2 :], h[..., : each // 2]], -1) * sin

    h = _looked_up(p["model.embed_tokens.weight"], inputs).view(members, samples * tokens, width)
    for number in range(config.num_hidden_layers):
        block = f"model.layers.{number}"
        seen = normed(h, f"{block}.input_layernorm")
        q, k, v = (split(linear(seen, f"{block}.self_attn.{one}_proj"), one != "v") for one in "qkv")
        again = heads // k.shape[1]
        k, v = k.repeat_interleave(again, 1), v.repeat_interleave(again, 1)
        h = h + linear(_attention(q, k, v, members), f"{block}.self_attn.o_proj")
        seen = normed(h, f"{block}.post_attention_layernorm")
        gate = functional.silu(linear(seen, f"{block}.mlp.gate_proj"))
        h = h + linear(gate * linear(seen, f"{block}.mlp.up_proj"), f"{block}.mlp.down_proj")
    head = p.get("lm_head.weight", p["model.embed_tokens.weight"])
    return torch.bmm(normed(h, "model.norm"), head.mT)


def views(vectors: Tensor, names: Mapping[str, tuple[int, tuple[int, ...]]]) -> dict[str, Tensor]:
    """Each parameter as a view [members, *shape] of ``vectors`` [members, numel]. ``names``: name -> (its first
    element, its shape)."""
    return {
        name: vectors[:, start : start + math.prod(shape)].view(len(vectors), *shape)
        for name, (start, shape) in names.items()
    }
