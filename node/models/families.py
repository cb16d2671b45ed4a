"""The model families of `transformers` that farflung trains: where their pieces are and what starts them.

A family is a table row. Everything else (shapes, names, cutting into layers) is read from the modelling class itself,
built on the meta device, so that a family's own code stays the only definition of its mathematics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...job.positions import longest_of
from ...proto.errors import FarflungError

DEFAULT_CONTEXT = 1024
"""Tokens a sample of a pretrained model where the job does not say, unless the model's own longest is less."""


@dataclass(frozen=True)
class Family:
    """Where a causal language model of `transformers` keeps its pieces, as attribute names below its base module."""

    name: str  # model_type in config.json
    base: str  # "transformer" in "transformer.h.0.ln_1.weight"
    embedding: str
    positions: str | None  # learned position embedding; None: rotary
    blocks: str
    norm: str
    head: str = "lm_head"  # as files call it; the attribute's name has changed between versions of `transformers`
    other_heads: tuple[str, ...] = ()  # what some files call it instead


FAMILIES: dict[str, Family] = {
    "gpt2": Family("gpt2", "transformer", "wte", "wpe", "h", "ln_f"),
    "llama": Family("llama", "model", "embed_tokens", None, "layers", "norm"),
    "mistral": Family("mistral", "model", "embed_tokens", None, "layers", "norm"),
    "qwen2": Family("qwen2", "model", "embed_tokens", None, "layers", "norm"),
    "gpt_neox": Family(
        "gpt_neox",
        "gpt_neox",
        "embed_in",
        None,
        "layers",
        "final_layer_norm",
        head="embed_out",
        other_heads=("lm_head",),
    ),
}


def family_of(name: str, where: str) -> Family:
    """The family called `name`; FarflungError (saying `where` it was read) for one that farflung doesn't know."""
    if name not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise FarflungError(f"{where}: the model family {name!r} is not supported", hint=f"farflung trains: {known}")
    return FAMILIES[name]


def fresh_config(model: Any, vocabulary: int, context: int) -> Any:
    """The `transformers` configuration of a model that starts from random weights.

    `model` is the job's [model] section; `vocabulary` in tokens, `context` in tokens a sample. Dropout is 0.
    """
    import transformers

    family = family_of(model.family, "model.family")
    _check_sizes(model)
    _refuse_dropout(float(getattr(model, "dropout", 0.0) or 0.0))
    width, layers, heads = int(model.width), int(model.layers), int(model.heads)
    tie = getattr(model, "tie", None)
    common = {
        "vocab_size": vocabulary,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "initializer_range": small_deviation(width),
    }
    if family.name == "gpt2":
        config = transformers.GPT2Config(
            **common,
            n_positions=context,
            n_embd=width,
            n_layer=layers,
            n_head=heads,
            tie_word_embeddings=True if tie is None else tie,
        )
    elif family.name == "gpt_neox":
        config = transformers.GPTNeoXConfig(
            **common,
            max_position_embeddings=context,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            tie_word_embeddings=bool(tie),
        )
    else:
        kind = {"llama": "LlamaConfig", "mistral": "MistralConfig", "qwen2": "Qwen2Config"}[family.name]
        config = getattr(transformers, kind)(
            **common,
            max_position_embeddings=context,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=int(getattr(model, "kv_heads", None) or heads),
            intermediate_size=gated_width(width),
            tie_word_embeddings=bool(tie),
            **({} if family.name == "llama" else {"sliding_window": None}),
        )
    return _without_dropout(config)


def stored_config(values: Mapping[str, Any], context: int | None, dropout: float = 0.0) -> Any:
    """The configuration of a model folder's config.json, made fit for training windows of `context` tokens.

    Raises FarflungError for a family that farflung doesn't know, a context longer than the model's, and quantised
    weights.
    """
    import transformers

    where = "config.json of the pretrained model"
    kind = str(values.get("model_type", ""))
    family_of(kind, where)
    if values.get("quantization_config") is not None:
        raise FarflungError(
            f"{where}: quantised weights can't be trained", hint="use the folder of the unquantised model"
        )
    _refuse_dropout(dropout)
    try:
        config = transformers.AutoConfig.for_model(**{**values, "model_type": kind})
    except (TypeError, ValueError, KeyError) as error:
        raise FarflungError(f"{where} can't be read: {error}", hint="save the model with save_pretrained") from error
    longest = longest_of(config.to_dict()) or DEFAULT_CONTEXT
    context = context or min(longest, DEFAULT_CONTEXT)
    if context > longest:
        raise FarflungError(
            f"model.context = {context}, but the pretrained model's longest is {longest}",
            hint=f"write context = {longest} or less under [model]",
        )
    return _without_dropout(config)


def gated_width(width: int) -> int:
    """Inner width of a gated MLP: 8/3 of `width` (the parameters of an ungated 4x MLP), rounded up to 64's multiple."""
    return -(-(8 * width) // (3 * 64)) * 64


def small_deviation(width: int) -> float:
    """Standard deviation of fresh matrices, sqrt(2 / (5 width)): Nguyen and Salazar 2019, as GPT-NeoX starts.

    0.023 at width 768, where GPT-2 has 0.02. The families' constant 0.02 makes narrow models learn nothing for
    hundreds of steps.
    """
    return math.sqrt(2 / (5 * width))


def initial_deviation(family: Family, name: str, shape: tuple[int, ...], config: Any) -> float:
    """Standard deviation of a matrix's initial values (Radford et al. 2019, 2.3: GPT-2's residual projections)."""
    deviation = float(config.initializer_range)
    if family.name == "gpt2" and name.endswith("c_proj.weight"):
        deviation /= math.sqrt(2 * int(config.num_hidden_layers))
    return deviation


def _check_sizes(model: Any) -> None:
    for key in ("layers", "width", "heads"):
        if getattr(model, key, None) is None:
            raise FarflungError(f"model.{key} is missing", hint=f"write {key} = a number under [model]")
    width, heads = int(model.width), int(model.heads)
    if width % heads or (width // heads) % 2:
        raise FarflungError(
            f"model.width = {width} does not divide into {heads} heads of even width",
            hint=f"write width = {heads * 2 * max(1, round(width / heads / 2))} or change heads",
        )
    shared = getattr(model, "kv_heads", None)
    if shared is not None and (shared < 1 or heads % shared):
        raise FarflungError(
            f"model.kv_heads = {shared} does not divide model.heads = {heads}", hint="use a divisor of it"
        )


def _refuse_dropout(dropout: float) -> None:
    if dropout > 0:
        raise FarflungError(
            f"not yet: model.dropout = {dropout}", hint="remove it, or write dropout = 0.0 under [model]"
        )


def _without_dropout(config: Any) -> Any:
    for key in ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout", "hidden_dropout"):
        if hasattr(config, key):
            setattr(config, key, 0.0)
    config.use_cache = False
    config._attn_implementation = "sdpa"
    return config
