"""The layers of a decoder from its sizes: each one's parameters, flops, output elements, and elements kept for the
backward pass.

One sample is ``context`` tokens. A run's profile (node/models/profiling/cost.py) counts the same, and tests hold both
against what the modelling classes have and what torch keeps for the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import PlanError
from .workload import Layer

FAMILIES = ("gpt2", "llama", "gpt_neox")
VARIANTS = {"mistral": "llama", "qwen2": "llama"}
"""Families that differ from another family only by a few biases."""
FORMULAS = frozenset({*FAMILIES, *VARIANTS})
"""Families whose layers the formulas below count exactly; for all other families a run measures the layers."""
ALIKE = ("qwen3", "olmo2", "smollm3", "granite", "phi3")
"""Families that a job may begin with random weights; counted approximately, as llama, where nothing is measured."""
PLAIN = frozenset({"bloom", "codegen", "falcon", "gpt_bigcode", "gpt_neo", "gptj", "mpt", "opt", "phi", "starcoder2"})
"""Families whose MLP has two matrices and no gate: counted approximately as gpt_neox. Every other family is counted as
llama."""
DEFAULT_CONTEXT = 1024
"""Tokens of a sample of a pretrained model where the job has no context; the model's longest context where that is
shorter."""
CUT = frozenset({"gpt_neox", "llama", "mistral", "qwen2", "qwen3", "smollm3", "granite"})
"""Families whose blocks' matrices devices of one node may share; a run asks `transformers` about every family."""
LORA_TARGETS = {"gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"], "gpt_neox": ["query_key_value"]}
"""The matrices that get adapters where a job names none: the defaults of `peft`."""


@dataclass(frozen=True)
class Shape:
    """A decoder's sizes. inner: width of the MLP, None for 4 x width (llama: 8/3 x width in multiples of 64).

    head_width: width of each head, None for width / heads. positions: number of learned positions, None for the
    context's. biases: whether queries, keys and values of a llama have biases (Qwen2). experts: number in each block;
    each is an MLP of width ``inner``, and a token goes to ``experts_used`` of them. shared_inner: the width of the MLP
    that all tokens go through. subspace: how many coordinates of the hidden state blocks write and send, None for all.
    named: the family by its own name.
    """

    family: str
    layers: int
    width: int
    context: int
    vocabulary: int
    heads: int = 1
    kv_heads: int | None = None
    inner: int | None = None
    tie: bool | None = None
    head_width: int | None = None
    positions: int | None = None
    biases: bool = False
    experts: int = 1
    experts_used: int = 1
    shared_inner: int = 0
    subspace: int | None = None
    named: str = ""

    @property
    def tied(self) -> bool:
        """Whether embedding and head share their matrix."""
        return self.subspace is None and (self.tie if self.tie is not None else self.family == "gpt2")

    @property
    def inner_width(self) -> int:
        """The width of the MLP."""
        default = 64 * math.ceil(8 * self.width / 192) if self.family == "llama" else 4 * self.width
        return self.inner or default

    @property
    def query_width(self) -> int:
        """The total width of all heads' queries."""
        return self.heads * (self.head_width or self.width // self.heads)

    @property
    def kv_width(self) -> int:
        """The total width of all heads' keys, and of their values."""
        return self.query_width // self.heads * (self.kv_heads or self.heads)


def decoder_layers(shape: Shape, precision: str = "fp32") -> tuple[Layer, ...]:
    """Embedding, blocks and head of a decoder. precision: fp32, or bf16 or fp16 under autocast.

    A matrix of n weights costs 2n flops a token forward, attention 4 t d a token (Kaplan et al. 2020, 2.1). What a
    block keeps is a sum over its operations, each of which keeps its inputs; attention keeps no scores. Under autocast
    a matrix's inputs and a copy of the matrix are kept in bf16, the norms' inputs in fp32.
    """
    width, context, vocabulary = shape.width, shape.context, shape.vocabulary
    query, keys, inner, gated = shape.query_width, shape.kv_width, shape.inner_width, shape.family == "llama"
    expert = (3 if gated else 2) * width * inner
    shared = (3 if gated else 2) * width * shape.shared_inner
    matrices = 2 * width * query + 2 * width * keys + shape.experts * expert + shared
    matrices += shape.experts * width if shape.experts > 1 else 0  # the router
    resting = (shape.experts - shape.experts_used) * expert  # weights of experts that a token does not use
    inner = shape.experts_used * inner + shape.shared_inner
    if gated:
        parameters = matrices + 2 * width + shape.biases * (query + 2 * keys)
    else:
        parameters = matrices + 9 * width + inner
    boundary = context * width
    part = 1 if precision == "fp32" else 2  # values in half of fp32's bytes
    if gated:
        norms, inputs = 4 * width, 5 * width if part == 2 else 2 * width
        kept = norms + (inputs + 2 * query + 2 * keys + 4 * inner) / part
    elif shape.family == "gpt2":
        kept = 2 * width + (6 * width + 5 * inner) / part
    else:
        kept = width + (9 * width + 2 * inner) / part
    norm = width if gated else 2 * width
    head = vocabulary * width + norm
    head_kept = (2 if gated else 1) * width + width / part + vocabulary
    copied = part == 2
    embedding = vocabulary * width + ((shape.positions or context) * width if shape.family == "gpt2" else 0)
    block_flops = 2.0 * context * (parameters - resting) + 4.0 * context * context * width
    stored = round(context * (kept + shape.heads + 2))
    beside = 2 * context * inner // part  # gradients of the MLP's widest values
    if not gated and shape.family != "gpt2":  # one of them comes when what the matrix after it kept is free
        beside = context * (inner + (part - 1) * width) // part
    if shape.subspace is not None:  # in embedding and blocks, rows that are never written are no parameters
        less = (width - shape.subspace) * (query + shape.experts * shape.inner_width + (0 if gated else 2))
        embedding = embedding // width * shape.subspace
        parameters, matrices, boundary = parameters - less, matrices - less, context * shape.subspace
        block_flops -= 2.0 * context * less
    block = (parameters, block_flops, boundary, stored, 0, matrices // 2 * copied, beside)
    largest = max(inputs * outputs for pairs in block_matrices(shape).values() for inputs, outputs in pairs)
    return (
        Layer("embedding", embedding, 2.0 * boundary, boundary, 2 * context, largest=vocabulary * width),
        *(Layer(f"block {index}", *block, largest=largest) for index in range(shape.layers)),
        Layer(
            "head",
            head,
            2.0 * context * head,
            1,  # logits stay where they are
            round(context * (head_kept + 4)),
            copies=vocabulary * width // 2 * copied,
            working=context * vocabulary * 2,  # the logits, and their gradient
            largest=vocabulary * width,
        ),
    )


_PACKED = {"int8": 68 / 256, "nf4": 36 / 256}
"""Bytes of a frozen block matrix by precision, as a part of fp32's, with an fp32 scale for each 64 weights."""
SLICE = 1 << 17
"""Weights of a packed matrix that are decoded at a time."""
_SLICES = {"int8": 4 / 4, "nf4": 6 / 4}
"""Elements of 4 bytes that decoding a weight of a slice takes beside the matrix."""


def adapter_layers(shape: Shape, lora: Mapping[str, Any], precision: str = "fp32") -> tuple[Layer, ...]:
    """The layers of a run that trains adapters ([model.lora]): the blocks, the first with the embedding, the last with
    the head, whose weights are frozen.

    Frozen weights get no gradients, so that their backward pass costs what the forward pass does: two thirds of the
    whole, as Layer.flops counts it. An adapter of a matrix n x m has rank x (n + m) parameters (Hu et al. 2021), with
    DoRA m more.
    """
    whole, matrices, rank = decoder_layers(shape, precision), block_matrices(shape), lora.get("rank", 8)
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise PlanError(f"rank of the job must be a whole number of at least 1, not {rank!r}")
    wished = lora.get("targets") or LORA_TARGETS[shape.family]
    targets = [wished] if isinstance(wished, str) else list(wished)
    for target in targets:
        if target not in matrices:
            raise PlanError(
                f"model.lora.targets: no matrix of {shape.family} is called {target!r}: it is one of "
                + ", ".join(matrices)
            )
    pairs = [pair for name in targets for pair in matrices[name]]
    trained = sum(rank * (inputs + outputs) + bool(lora.get("dora")) * outputs for inputs, outputs in pairs)
    layers, base = [], str(lora.get("base"))
    half = base == "bf16"
    sizes = [inputs * outputs for pairs in matrices.values() for inputs, outputs in pairs]
    saved = sum(sizes) * (1 - _PACKED[base]) if base in _PACKED else 0.0
    # The embedding's output needs no gradient: so the first norm keeps nothing, nor do the matrices that read it.
    reading = sum(math.prod(pair) for name in _FIRST for pair in matrices.get(name, ()))
    kept = frozen_kept(shape, targets, rank, precision, dora=bool(lora.get("dora")))
    head = shape.context * (shape.width + shape.vocabulary + 3)
    for index in range(1, len(whole) - 1):
        last = index == len(whole) - 2
        parts = whole[0 if index == 1 else index : index + 1 + last]
        stored = shape.context * (kept - shape.width if index == 1 else kept)
        layers.append(
            Layer(
                whole[index].name,
                trained,
                sum(part.flops for part in parts) * 2 / 3 + 2.0 * shape.context * trained,
                1 if last else whole[index].activation,
                stored,
                round(sum(part.parameters for part in parts) * (0.5 if half else 1) - saved),
                0 if half or saved else whole[index].copies - (index == 1) * reading // 2 * (precision != "fp32"),
                shape.context * frozen_working(shape, precision),
                temporary_of(base, max(sizes), precision),
                stored + shape.context * decoding_beside(shape, precision) if saved else 0,
                whole[0].activation if index == 1 else 0,
                head if last else 0,
                whole[-1].working if last else 0,
                whole[-1].copies if last and not half else 0,
            )
        )
    return tuple(layers)


def temporary_of(base: str, largest: int, precision: str) -> int:
    """Elements that decoding a packed matrix of at most ``largest`` weights takes: itself, and what a slice needs."""
    if base not in _PACKED:
        return 0
    return round(largest / (1 if precision == "fp32" else 2) + _SLICES[base] * min(largest, SLICE))


def decoding_beside(shape: Shape, precision: str) -> int:
    """Elements of each token that a block which is computed again has beyond what it keeps, while it decodes the matrix
    before its activation function: a gradient of that function's output, input and gradient of the block's MLP, and not
    yet what that function keeps."""
    inner = shape.experts_used * shape.inner_width + shape.shared_inner
    later = {"llama": 2, "gpt2": 4}.get(shape.family, 1)
    part = 1 if precision == "fp32" else 2
    return shape.width + shape.width // part + (1 - later) * inner // part


def frozen_working(shape: Shape, precision: str) -> int:
    """Elements of each token that exist only in a frozen block's backward pass: the hidden state's gradient, and those
    of the MLP's widest values. GPT-2's activation function is a product, whose backward pass has its gradient and those
    of both factors; in half precision one of the three was measured beyond what the block keeps."""
    inner = shape.experts_used * shape.inner_width + shape.shared_inner
    if shape.family == "gpt2":
        return shape.width + (3 * inner if precision == "fp32" else inner // 2)
    return shape.width + 2 * inner // (1 if precision == "fp32" else 2)


def frozen_kept(shape: Shape, targets: Sequence[str], rank: int, precision: str, *, dora: bool) -> int:
    """Elements that a block of frozen matrices keeps of each token for the backward pass: what decoder_layers counts,
    without the inputs of matrices that have no adapter, and without what only the gradients of norms' factors need."""
    width, query, keys, part = shape.width, shape.query_width, shape.kv_width, 1 if precision == "fp32" else 2
    inner = shape.experts_used * shape.inner_width + shape.shared_inner
    if shape.family == "llama":
        kept = 2 * width + (2 * query + 2 * keys + 3 * inner) / part
    elif shape.family == "gpt2":
        kept = 2 * width + (4 * width + 4 * inner) / part
    else:
        kept = width + (6 * width + inner) / part
    pairs = [(name, pair) for name in targets for pair in block_matrices(shape)[name]]
    # In fp32, adapters that read the same values keep them once, or attention and MLP do; autocast makes a copy each.
    reads = [(_READS.get(name, name), inputs) for name, (inputs, _) in pairs]
    kept += sum(inputs for _, inputs in (reads if part == 2 else set(reads))) / part
    kept += rank * len(pairs) / part
    if dora:
        for name, (_, outputs) in pairs:  # the frozen layer's output, in fp32 where a bias is taken from it
            biased = shape.family != "llama" or (shape.biases and _READS.get(name, name) == "q_proj")
            kept += outputs * ((1 if biased else 1 / part) + 1 / part)
    return round(kept + shape.heads + 2)


_FIRST = ("q_proj", "k_proj", "v_proj", "c_attn", "query_key_value")
"""Matrices that read a block's normalised input."""
_READS = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}
"""Matrices that read the same values as another."""


def pair_layers(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """The layers where adapters learn from pairs of answers (train.task = "dpo"): the base without adapters computes
    each pair's forward pass too, which takes half as long as an adapter's forward and backward pass together; between
    stages both outputs are sent."""
    last = layers[-1]
    return tuple(
        replace(
            layer,
            flops=1.5 * layer.flops,
            activation=layer.activation if layer is last else 2 * layer.activation,
            working=2 * layer.working,
            after_working=2 * layer.after_working,
        )
        for layer in layers
    )


def shares_of(shape: Shape) -> int:
    """The most devices that can share the matrices of a block, and each divisor of it can, too; 0: none can."""
    return math.gcd(shape.heads, shape.kv_heads or shape.heads, shape.inner_width) if shape.named in CUT else 0


def block_matrices(shape: Shape) -> dict[str, list[tuple[int, int]]]:
    """Name -> (inputs, outputs) of each matrix of a block with this name."""
    width, inner = shape.width, shape.inner_width
    if shape.family == "llama":
        return {
            "q_proj": [(width, shape.query_width)],
            "k_proj": [(width, shape.kv_width)],
            "v_proj": [(width, shape.kv_width)],
            "o_proj": [(shape.query_width, width)],
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


def shape_of(content: Mapping[str, Any], context: int | None = None, vocabulary: int | None = None) -> Shape:
    """The sizes that config.json of a model folder, or a job's table [model], says. PlanError where one is missing.

    context: the job's, where it has one. vocabulary: the tokenizer's; a vocabulary in the folder's config.json counts
    before it.
    """
    named = str(content.get("model_type") or content.get("family") or "gpt2")
    if content.get("model_type") is None and named not in (*FORMULAS, *ALIKE):
        raise PlanError(f"unknown model family {named!r}: it is one of {', '.join((*FAMILIES, *VARIANTS, *ALIKE))}")
    family = "gpt_neox" if named in PLAIN else named if named in FAMILIES else VARIANTS.get(named, "llama")

    def size(default: int | None, *keys: str) -> int:
        for key in keys:
            value = content.get(key)
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    raise PlanError(f"{key} of the job must be a whole number of at least 1, not {value!r}")
                return value
        if default is None:
            raise PlanError(f"the job's model needs {keys[0]!r}")
        return default

    heads = size(1, "heads", "num_attention_heads", "n_head", "n_heads")
    longest = size(context or DEFAULT_CONTEXT, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    tie = content.get("tie", content.get("tie_word_embeddings"))
    experts = size(1, "num_local_experts", "num_experts", "n_routed_experts")
    inner_keys = ("intermediate_size", "n_inner", "ffn_dim")
    inner = size(0, *(("moe_intermediate_size",) if experts > 1 else ()), *inner_keys)
    shared = size(0, "shared_expert_intermediate_size") if experts > 1 else 0
    if experts > 1 and not shared:
        shared = inner * size(0, "n_shared_experts")
    return Shape(
        family=family,
        layers=size(None, "layers", "num_hidden_layers", "n_layer", "n_layers"),
        width=size(None, "width", "hidden_size", "n_embd", "d_model"),
        context=context or min(longest, DEFAULT_CONTEXT),
        vocabulary=size(vocabulary, "vocabulary", "vocab_size"),
        heads=heads,
        kv_heads=1 if content.get("multi_query") else size(heads, "kv_heads", "num_key_value_heads", "num_kv_heads"),
        inner=inner or None,
        tie=None if tie is None else bool(tie),
        head_width=content.get("head_dim") or None,
        positions=longest,
        biases=named in ("qwen2", "qwen2_moe"),
        experts=experts,
        experts_used=min(experts, size(1, "num_experts_per_tok")),
        shared_inner=shared,
        subspace=content.get("subspace") or None,
        named=named,
    )
