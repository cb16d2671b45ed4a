"""The model families of `transformers` that farflung trains: exceptions to what anatomy.py finds, and initial values.

A family is a table row. Everything else (shapes, names, cutting into layers) is read from the modelling class itself,
built on the meta device, so that a family's own code stays the only definition of its mathematics.
"""

from __future__ import annotations

import copy
import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ....job.model_folder.positions import longest_of
from ....proto.errors import FarflungError
from ..dropout import no_dropout, set_rates

DEFAULT_CONTEXT = 1024
"""Tokens per sample of a pretrained model if the job does not set them and the model's own maximum is not smaller."""


@dataclass(frozen=True)
class Family:
    """Facts about a family that anatomy.py cannot find.

    head: the head's name in files if it differs from that in the class; other_heads: its names in some other files.
    """

    name: str  # model_type in config.json
    head: str | None = None
    other_heads: tuple[str, ...] = ()


FAMILIES: dict[str, Family] = {
    "gpt_neox": Family("gpt_neox", head="embed_out", other_heads=("lm_head",)),
}
"""The exceptions: every other decoder of `transformers` needs no row."""


def row_of(name: str) -> Family:
    """The family called ``name``."""
    return FAMILIES.get(name, Family(name))


def check_decoder(name: str, where: str) -> None:
    """FarflungError if the family ``name`` is no decoder of `transformers`; ``where``: the key that names it."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as DECODERS
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED

    if name not in DECODERS:
        near = difflib.get_close_matches(name, DECODERS, 1, 0.8)
        raise FarflungError(
            f"{where}: the model family {name!r} is not supported: the transformers that is installed knows no decoder "
            f"of that name{f'; it knows {near[0]!r}' if near else ''}",
            hint="pip install -U transformers, or use a causal language model",
        )
    if name in MASKED:
        raise FarflungError(
            f"{where}: the model family {name!r} is not supported: it sees the words that it is to predict",
            hint="use a causal language model",
        )


def check_classifier(name: str, where: str) -> None:
    """FarflungError if `transformers` has no sequence classification for the family ``name``."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as CLASSIFIERS

    if name not in CLASSIFIERS:
        near = difflib.get_close_matches(name, CLASSIFIERS, 1, 0.8)
        raise FarflungError(
            f"{where}: the transformers that is installed has no sequence classification for the family {name!r}"
            f"{f'; it has it for {near[0]!r}' if near else ''}",
            hint="use another model, such as a bert, a roberta or a llama",
        )


_OF_ITS_OWN: Mapping[str, dict[str, Any]] = {"mistral": {"sliding_window": None}, "qwen2": {"sliding_window": None}}
"""Settings of a model that starts from random weights which differ from the class's defaults."""
_WIDE_HEADS = ("qwen3",)
"""Families whose default head width is that of the published model, not width / heads."""


def fresh_config(model: Any, vocabulary: int, context: int) -> Any:
    """The `transformers` configuration of a model that starts from random weights.

    `model` is the job's [model] section; `vocabulary` in tokens, `context` in tokens per sample.
    """
    import transformers

    check_decoder(model.family, "model.family")
    family = row_of(model.family)
    _check_sizes(model)
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
        config = transformers.CONFIG_MAPPING[family.name](
            **common,
            max_position_embeddings=context,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=int(getattr(model, "kv_heads", None) or heads),
            intermediate_size=gated_width(width),
            tie_word_embeddings=bool(tie),
            **_OF_ITS_OWN.get(family.name, {}),
            **({"head_dim": width // heads} if family.name in _WIDE_HEADS else {}),
        )
    return _with_dropout(config, float(getattr(model, "dropout", 0.0) or 0.0))


def stored_config(
    values: Mapping[str, Any],
    context: int | None,
    dropout: float = 0.0,
    check: Callable[[str, str], None] = check_decoder,
) -> Any:
    """The configuration of a model folder's config.json, for training on windows of `context` tokens (None: the
    default), with every dropout rate set to ``dropout``. ``check(family, where)`` raises for an unsupported family.

    Raises FarflungError for a family that farflung doesn't know, a context longer than the model's, and quantised
    weights.
    """
    import transformers

    where = "config.json of the pretrained model"
    kind = str(values.get("model_type", ""))
    check(kind, where)
    if values.get("quantization_config") is not None:
        raise FarflungError(
            f"{where}: quantised weights can't be trained", hint="use the folder of the unquantised model"
        )
    try:
        config = transformers.AutoConfig.for_model(**{**values, "model_type": kind})
    except Exception as error:  # each class checks its values in its own way
        why = " ".join(str(error).split()) or type(error).__name__
        raise FarflungError(f"{where} can't be read: {why}", hint="save the model with save_pretrained") from error
    longest = longest_of(config.to_dict()) or DEFAULT_CONTEXT
    context = context or min(longest, DEFAULT_CONTEXT)
    if context > longest:
        raise FarflungError(
            f"model.context = {context}, but the pretrained model's longest is {longest}",
            hint=f"write context = {longest} or less under [model]",
        )
    return _with_dropout(config, dropout)


def gated_width(width: int) -> int:
    """Inner width of a gated MLP: 8/3 of `width` (as many parameters as an ungated 4x MLP), rounded up to a multiple
    of 64."""
    return -(-(8 * width) // (3 * 64)) * 64


def small_deviation(width: int) -> float:
    """Standard deviation of fresh matrices, sqrt(2 / (5 width)): Nguyen and Salazar 2019, as GPT-NeoX starts.

    0.023 at width 768, where GPT-2 has 0.02. With the families' constant 0.02, narrow models learn nothing for hundreds
    of steps.
    """
    return math.sqrt(2 / (5 * width))


def initial_deviation(family: Family, name: str, shape: tuple[int, ...], config: Any) -> float:
    """Standard deviation of a matrix's initial values (Radford et al. 2019, 2.3: GPT-2's residual projections)."""
    deviation = float(getattr(config, "initializer_range", None) or getattr(config, "init_std", None) or 0.02)
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


def initial_constant(model: Any, name: str, shape: tuple[int, ...]) -> Tensor:
    """Initial value of a vector, float32 [n]: the one that `transformers` sets; if that is random, zeros for a bias,
    else ones."""
    path, _, last = name.rpartition(".")
    owner = copy.copy(model.get_submodule(path))  # a shallow copy: it shares its submodules with the model
    owner._parameters = {
        key: nn.Parameter(torch.full(one.shape, math.nan) if one.dim() < 2 else one, requires_grad=False)
        for key, one in owner._parameters.items()
        if one is not None
    }
    owner._buffers = {key: None if one is None else torch.zeros(one.shape) for key, one in owner._buffers.items()}
    with torch.no_grad():
        model._init_weights(owner)
    values: Tensor = owner._parameters[last].detach()
    if values.numel() and bool((values == values[0]).all()):
        return values.clone()
    return torch.zeros(shape) if last == "bias" else torch.ones(shape)


def _with_dropout(config: Any, rate: float) -> Any:
    """Set every dropout rate of a configuration to ``rate``, and noise in routers to 0. Returns the configuration."""
    if not set_rates(config, rate) and rate:
        raise no_dropout(str(config.model_type))
    if hasattr(config, "output_router_logits"):
        config.output_router_logits = False
    config.use_cache = False
    return config
