"""The Workload of a job file: layer sizes from the model's shape, bits on the wire from the codec's name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .codecs import BLOCK, bits_of
from .errors import PlanError
from .files import load_json
from .ladder import workload_fields
from .workload import Layer, Workload

FAMILIES = ("gpt2", "llama", "gpt_neox")
BYTE_VOCABULARY = 257
LORA_TARGETS = {"gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"], "gpt_neox": ["query_key_value"]}
"""The matrices that `peft` gives adapters where a job names none."""
MOMENT_BYTES = {"sgd": 4.0, "adamw": 8.0, "lamb": 8.0}


@dataclass(frozen=True)
class Shape:
    """A decoder's sizes. inner: width of the MLP, None for 4 x width (llama: 8/3 x width in multiples of 64)."""

    family: str
    layers: int
    width: int
    context: int
    vocabulary: int
    heads: int = 1
    kv_heads: int | None = None
    inner: int | None = None
    tie: bool | None = None

    @property
    def tied(self) -> bool:
        """Whether embedding and head share their matrix."""
        return self.tie if self.tie is not None else self.family == "gpt2"

    @property
    def inner_width(self) -> int:
        """The width of the MLP."""
        default = 64 * math.ceil(self.width * 8 / 3 / 64) if self.family == "llama" else 4 * self.width
        return self.inner or default


def decoder_layers(shape: Shape) -> tuple[Layer, ...]:
    """Embedding, blocks and head of a decoder. One sample is `context` tokens.

    Kept for the backward pass of a block: 13 x width + inner elements a token, and the attention's scores and
    probabilities (after Korthikanti et al. 2022).
    """
    width, context, vocabulary = shape.width, shape.context, shape.vocabulary
    kv_width, inner = width * (shape.kv_heads or shape.heads) // shape.heads, shape.inner_width
    if shape.family == "llama":
        matrices = 2 * width * width + 2 * width * kv_width + 3 * width * inner
        parameters = matrices + 2 * width
    else:
        matrices = 4 * width * width + 2 * width * inner
        parameters = matrices + 9 * width + inner
    boundary = context * width
    flops = 2.0 * matrices * context + 4.0 * context * boundary
    stored = context * (13 * width + inner) + 2 * shape.heads * context * context
    positions = boundary if shape.family == "gpt2" else 0
    head = Layer(
        "head",
        vocabulary * width + 2 * width,
        2.0 * vocabulary * boundary,
        context * vocabulary,
        context * (vocabulary + width),
    )
    return (
        Layer("embedding", vocabulary * width + positions, 2.0 * boundary, boundary, boundary),
        *(Layer(f"block {index}", parameters, flops, boundary, stored) for index in range(shape.layers)),
        head,
    )


def adapter_layers(shape: Shape, lora: Mapping[str, Any]) -> tuple[Layer, ...]:
    """The layers of a run that trains adapters ([model.lora]): the blocks, the first with the embedding, the last with
    the head, whose weights are frozen.

    Frozen weights get no gradients, so that their backward pass costs what the forward pass does: two thirds of the
    whole, as Layer.flops counts it. An adapter of a matrix n x m has rank x (n + m) parameters (Hu et al. 2021).
    """
    whole, matrices, rank = decoder_layers(shape), block_matrices(shape), _whole(lora, "rank", 8)
    wished = lora.get("targets") or LORA_TARGETS[shape.family]
    targets = [wished] if isinstance(wished, str) else list(wished)
    for target in targets:
        if target not in matrices:
            raise PlanError(
                f"model.lora.targets: no matrix of {shape.family} is called {target!r}: it is one of "
                + ", ".join(matrices)
            )
    trained = rank * sum(inputs + outputs for name in targets for inputs, outputs in matrices[name])
    layers = []
    for index in range(1, len(whole) - 1):
        parts = whole[0 if index == 1 else index : index + 1 + (index == len(whole) - 2)]
        layers.append(
            Layer(
                whole[index].name,
                trained,
                sum(part.flops for part in parts) * 2 / 3 + 2.0 * shape.context * trained,
                whole[index].activation,
                sum(part.stored for part in parts),
                sum(part.parameters for part in parts),
            )
        )
    return tuple(layers)


def block_matrices(shape: Shape) -> dict[str, list[tuple[int, int]]]:
    """(inputs, outputs) of the matrices of a block that have each name."""
    width, inner = shape.width, shape.inner_width
    if shape.family == "llama":
        kv_width = width * (shape.kv_heads or shape.heads) // shape.heads
        return {
            "q_proj": [(width, width)],
            "k_proj": [(width, kv_width)],
            "v_proj": [(width, kv_width)],
            "o_proj": [(width, width)],
            "gate_proj": [(width, inner)],
            "up_proj": [(width, inner)],
            "down_proj": [(inner, width)],
        }
    if shape.family == "gpt2":
        return {"c_attn": [(width, 3 * width)], "c_proj": [(width, width), (inner, width)], "c_fc": [(width, inner)]}
    return {
        "query_key_value": [(width, 3 * width)],
        "dense": [(width, width)],
        "dense_h_to_4h": [(width, inner)],
        "dense_4h_to_h": [(inner, width)],
    }


def paper_workload(layers: int = 24, batch: int = 1024, **changes: Any) -> Workload:
    """The model that DT-FM was measured with: width 2048, context 2048, microbatch 1, fp16 on the wire, GPipe.

    Blocks only, `layers` equal ones. `changes` are fields of Workload.
    """
    shape = Shape("gpt2", layers, 2048, 2048, 50257, heads=16)
    values: dict[str, Any] = {
        "layers": decoder_layers(shape)[1:-1],
        "batch": batch,
        "microbatch": 1,
        "schedule": "gpipe",
        "mode": "gradient",
        "activation_bytes": 2.0,
        "recompute": True,
        "tokens_per_sample": 2048,
    }
    return Workload(**(values | changes))


def workload_of(job: Mapping[str, Any], folder: Path | str = ".") -> Workload:
    """The workload of a job file as `tomllib` reads it. Layer sizes come from the model's shape alone.

    Raises PlanError where the job names a model whose shape is not in the file (`build`) or can't be read.
    """
    model, train = _table(job, "model"), _table(job, "train")
    parallel, updates, activations = _table(job, "parallel"), _table(job, "updates"), _table(job, "activations")
    shape = _shape(model, _table(job, "data"), Path(folder))
    adapters = "lora" in model  # alone train: a tied matrix is frozen with the rest of the base
    optimizer = str(train.get("optimizer", "adamw"))
    mode = str(updates.get("mode", "delta"))
    fragments, block = _whole(updates, "fragments", 1), _whole(updates, "block", BLOCK)
    interval = max(1, _whole(updates, "every", 1) // fragments)
    overlap = "auto" if updates.get("overlap") == "auto" else _whole(updates, "overlap", 0, least=0)
    reference = 4.0 if mode == "delta" else 0.0
    half = 0.5 if train.get("moments") == "bf16" else 1.0
    moments = 0.0 if train.get("offload") else MOMENT_BYTES.get(optimizer, 8.0) * half
    precision_bits = 16.0 if train.get("precision") == "bf16" else 32.0
    microbatch = _whole(train, "microbatch", 4)
    sent = microbatch * shape.context * shape.width
    return Workload(
        layers=adapter_layers(shape, _table(model, "lora")) if adapters else decoder_layers(shape),
        batch=_whole(train, "batch", 32),
        microbatch=microbatch,
        stages=_wish(parallel, "stages"),
        pipelines=_wish(parallel, "pipelines"),
        schedule=str(parallel.get("schedule", "1f1b")),
        mode=mode,
        **workload_fields(mode, str(updates.get("codec", "none")), overlap, interval, fragments, block),
        pattern=str(updates.get("pattern", "auto")),
        activation_bits=bits_of(str(activations.get("forward", "none")), sent, precision_bits),
        gradient_bits=bits_of(str(activations.get("backward", "none")), sent, precision_bits),
        optimizer_bytes=8.0 + moments + reference,
        activation_bytes=precision_bits / 8,
        recompute=bool(train.get("recompute", False)),
        tied=shape.tied and not adapters,
        tokens_per_sample=shape.context,
    )


def _table(job: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = job.get(name, {})
    if not isinstance(value, Mapping):
        raise PlanError(f"[{name}] of the job must be a table, not {value!r}")
    return value


def _whole(table: Mapping[str, Any], key: str, default: int, least: int = 1) -> int:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise PlanError(f"{key} of the job must be a whole number of at least {least}, not {value!r}")
    return value


def _wish(parallel: Mapping[str, Any], key: str) -> int | None:
    return None if parallel.get(key, "auto") == "auto" else _whole(parallel, key, 1)


def _shape(model: Mapping[str, Any], data: Mapping[str, Any], folder: Path) -> Shape:
    if "build" in model:
        raise PlanError("the job's model is built by code, so its layer sizes are only known in a run: give a Workload")
    content: Mapping[str, Any] = model
    if "pretrained" in model:
        content = load_json(folder / str(model["pretrained"]) / "config.json")
    family = str(content.get("model_type") or content.get("family", "gpt2"))
    if family in ("mistral", "qwen2"):
        family = "llama"
    if family not in FAMILIES:
        raise PlanError(f"unknown model family {family!r}: it is one of {', '.join(FAMILIES)}")

    def size(default: int | None, *keys: str) -> int:
        for key in keys:
            if content.get(key) is not None:
                return _whole(content, key, 1)
        if default is None:
            raise PlanError(f"the job's model needs {keys[0]!r}")
        return default

    heads = size(1, "heads", "num_attention_heads", "n_head")
    kv_heads = size(heads, "kv_heads", "num_key_value_heads")
    bytes_only = data.get("tokenizer", "bytes") == "bytes"
    inner = content.get("inner") or content.get("intermediate_size") or content.get("n_inner")
    tie = content.get("tie", content.get("tie_word_embeddings"))
    return Shape(
        family=family,
        layers=size(None, "layers", "num_hidden_layers", "n_layer"),
        width=size(None, "width", "hidden_size", "n_embd"),
        context=_whole(model, "context", size(1024, "context", "max_position_embeddings", "n_positions")),
        vocabulary=size(BYTE_VOCABULARY if bytes_only else 50257, "vocabulary", "vocab_size"),
        heads=heads,
        kv_heads=kv_heads,
        inner=int(inner) if inner else None,
        tie=None if tie is None else bool(tie),
    )
