"""The Workload of a job: the tables of its file in the scheduler's numbers.

``numbers`` is the one place that turns a job's tables into a Workload. A run calls it with the layers of its profile
(coordinator/planning/planner.py); `farflung plan`, which has only the file, with layers computed from the model's
shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import PlanError
from ..networks.files import load_json
from .codecs import BLOCK, SUMMED, bits_of
from .decoders import Shape, adapter_layers, decoder_layers, pair_layers, shape_of, shares_of
from .early import early_rounds_of
from .inside import kinds_of
from .ladder import intervals, link_choices, wire_codec, workload_fields
from .offload import APART, NONE, OF_AUTO, PARAMETERS, block_bytes, offload_of, on_device
from .offload import AUTO as AUTO_OFFLOAD
from .round_copies import USUAL, error_copies, message_copies, pattern_of
from .workload import EVERY, Layer, Offload, Size, Workload

AUTO = "auto"
SCHEDULES_OF_AUTO = ("1f1b", "interleaved")
BYTE_VOCABULARY = 256
MOMENT_BYTES = {
    "sgd": 4.0,
    "adamw": 8.0,
    "lamb": 8.0,
    "lion": 4.0,
    "muon": 8.0,
    "adafactor": 0.1,
    "onebit_adam": 8.0,
}
"""Bytes of fp32 moments for each parameter. adafactor's are rows and columns, about 10 / width in a gpt2's block and
7 / width in a llama's: what is counted here is enough from a width of 100 on."""
HALF = {"fp32": 1.0, "bf16": 0.5, "fp16": 0.5}
WEIGHT_BYTES = 8.0
"""Bytes of a parameter for its weight and its gradient."""
MOST_SAMPLES = 64
"""Most samples of a microbatch that a plan chooses."""
HALF_SPEED = 256
"""Tokens of a microbatch with which a device computes at half of its speed: about as many as it can compute while it
reads the weights once (dense bf16 flops over bytes a second, 150 to 600 for GPUs since 2020; Williams et al. 2009)."""
PLAIN_BITS = 32.0
"""Bits of an element that codec none sends between stages that compute in fp32."""


def paper_workload(layers: int = 24, batch: int = 1024, **changes: Any) -> Workload:
    """The model that DT-FM was measured with: width 2048, context 2048, microbatch 1, fp16 on the wire, GPipe.

    `layers` equal blocks, without embedding and head. changes: fields of Workload.
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


def workload_of(job: Mapping[str, Any], folder: Path | str = ".", vocabulary: int | None = None) -> Workload:
    """The workload of a job file as `tomllib` reads it. The layers' sizes are computed from the model's shape alone.

    folder: the folder to which paths in the job are relative. vocabulary: the tokenizer's, where tokens are not bytes.
    PlanError where the job names a model whose shape is not in the file (`build`) or can't be read.
    """
    model, train = _table(job, "model"), _table(job, "train")
    adapters = model.get("lora") is not None  # only adapters train: a tied matrix is frozen with the rest of the base
    if model.get("parameters"):
        own = Layer("model", int(model["parameters"]), 2.0 * model["parameters"], 1)
        return numbers(job, (own,), tied=False, tokens=1)
    shape = _shape(model, _table(job, "data"), Path(folder), vocabulary)
    precision = str(train.get("precision", "fp32"))
    layers = adapter_layers(shape, _table(model, "lora"), precision) if adapters else decoder_layers(shape, precision)
    if adapters and train.get("task") == "dpo":
        layers = pair_layers(layers)
    return numbers(job, layers, tied=shape.tied and not adapters, tokens=shape.context, shares=shares_of(shape))


def numbers(job: Mapping[str, Any], layers: Sequence[Layer], tied: bool, tokens: int, *, shares: int = 0) -> Workload:
    """The workload of a job's tables and its model's layers; missing keys have the defaults of a run.

    tied: whether the first and the last layer share a matrix that trains. tokens: of a sample. shares: see Workload.
    """
    train, parallel = _table(job, "train"), _table(job, "parallel")
    updates, activations = _table(job, "updates"), _table(job, "activations")
    batch = _whole(train, "batch", 32)
    usual = max(size for size in range(1, 5) if batch % size == 0)
    sizes = microbatch_sizes(batch, _wish(parallel, "pipelines")) if train.get("microbatch") == AUTO else ()
    microbatch = max(size for size in sizes if size <= usual) if sizes else _whole(train, "microbatch", usual)
    mode, codec = str(updates.get("mode", "gradient")), str(updates.get("codec", "none"))
    seldom = updates.get("every") == AUTO
    every, fragments = EVERY[-1] if seldom else _whole(updates, "every", 1), _whole(updates, "fragments", 1)
    if every % fragments:
        raise PlanError(f"fragments of the job must divide every: {fragments} does not divide {every}")
    interval = every // fragments
    overlap: int | str = "auto"
    if updates.get("overlap") != "auto":
        overlap = _whole(updates, "overlap", 0, least=0)
    pattern = str(updates.get("pattern", "auto"))
    if not updates.get("agreed", True):
        overlap = interval if pattern == "async" else overlap  # async: no node waits for a round
        pattern = "ring"
    elif codec.partition(":")[0] in SUMMED:
        pattern = "publishers"
    pipelines = _wish(parallel, "pipelines")
    if _table(job, "model").get("parameters") and pipelines is None:
        pipelines = batch // microbatch  # own training loops: costs unknown, so as many as possible
    kind, moments = offload_of(train), moment_bytes(train, _table(job, "model").get("lora"))
    sent = microbatch * max((layer.activation for layer in layers[:-1]), default=1)
    forward, backward = str(activations.get("forward", "none")), str(activations.get("backward", "none"))
    schedule, block = str(parallel.get("schedule", "1f1b")), _whole(updates, "block", BLOCK)
    fields = workload_fields(mode, codec, overlap, interval, fragments, block)

    def of_state(kind: str) -> float:
        return on_device(kind, WEIGHT_BYTES, moments, reference_bytes(updates))

    def of_rounds(kind: str) -> float:
        return 0.0 if kind in APART else error_bytes(updates, fields["overlap"], pipelines)

    def of_main(kind: str) -> float:
        return of_state(NONE) + of_rounds(NONE) if kind in APART else 0.0

    open_kinds: tuple[str, ...] = OF_AUTO if kind == AUTO_OFFLOAD else ()
    if _table(job, "model").get("parameters"):
        open_kinds = open_kinds[:1]
    elif parallel.get("inside", "ddp") != "ddp":
        open_kinds = open_kinds[:2]
    elif train.get("recompute") not in (True, AUTO) or train.get("compile"):
        open_kinds = tuple(one for one in open_kinds if one != PARAMETERS)

    def bits(size: int) -> dict[str, Any]:
        """The fields of Size that follow from a microbatch of `size` samples."""
        elements = sent // microbatch * size
        raw = plain_bits(str(train.get("precision", "fp32")), elements)
        return {
            "activation_bits": bits_of(forward, elements, raw),
            "gradient_bits": bits_of(backward, elements, raw),
            "codecs": link_choices(forward, backward, elements, raw) if activations.get("by_link") else (),
        }

    return Workload(
        layers=tuple(layers),
        batch=batch,
        microbatch=microbatch,
        stages=_wish(parallel, "stages"),
        pipelines=pipelines,
        schedule=SCHEDULES_OF_AUTO[0] if schedule == AUTO else schedule,
        schedules=SCHEDULES_OF_AUTO if schedule == AUTO else (),
        mode=mode,
        **fields,
        intervals=intervals(mode, codec, overlap, block) if seldom else (),
        pattern=pattern,
        **bits(microbatch),
        sizes=tuple(Size(size, worth(size, usual, tokens), **bits(size)) for size in sizes),
        optimizer_bytes=of_state(kind),
        block_bytes=block_bytes(kind),
        main_bytes=of_main(kind),
        round_bytes=of_rounds(kind),
        offload=NONE if kind == AUTO_OFFLOAD else kind,
        offloads=tuple(
            Offload(one, of_state(one), of_rounds(one), block_bytes(one), of_main(one)) for one in open_kinds
        ),
        recompute=train.get("recompute", False) is True,
        auto_recompute=train.get("recompute") == AUTO,
        critical_batch=None if train.get("critical_batch") is None else _whole(train, "critical_batch", 1),
        tied=tied,
        tokens_per_sample=max(1, tokens),
        insides=kinds_of(job, shares),
        auto_inside=parallel.get("inside") == AUTO,
        shares=shares,
        early=early_rounds_of(job),
    )


def lesser_offloads(job: Mapping[str, Any], workload: Workload) -> tuple[Offload, ...]:
    """The kinds APART that the job could say in train.offload and does not, the least in main memory first, where
    forwards may be computed again. ``workload``: the job's."""
    train, kind = _table(job, "train"), offload_of(_table(job, "train"))
    more = {**job, "train": {**train, "offload": AUTO_OFFLOAD, "recompute": True}, "activations": None}
    all_kinds = numbers(more, workload.layers, workload.tied, workload.tokens_per_sample, shares=workload.shares)
    tried = {one.kind for one in workload.offloads} or set(OF_AUTO[: OF_AUTO.index(kind) + 1])
    return tuple(one for one in all_kinds.offloads if one.kind in APART and one.kind not in tried)


def microbatch_sizes(batch: int, pipelines: int | None) -> tuple[int, ...]:
    """The sizes of a microbatch, in samples, among which a plan chooses: divisors of the batch, each at least twice the
    one before, small enough that every wished pipeline gets a microbatch."""
    found: list[int] = []
    for size in range(1, min(batch // (pipelines or 1), MOST_SAMPLES) + 1):
        if batch % size == 0 and (not found or size >= 2 * found[-1]):
            found.append(size)
    if not found:
        raise PlanError(f"{pipelines} pipelines can't be: a batch has {batch} samples")
    return tuple(found)


def worth(size: int, usual: int, tokens: int) -> float:
    """The speed (samples a second) with microbatches of ``size`` samples, divided by that with ``usual`` samples: each
    microbatch takes as long as its tokens and HALF_SPEED more."""
    return (1.0 + HALF_SPEED / (usual * max(1, tokens))) / (1.0 + HALF_SPEED / (size * max(1, tokens)))


def plain_bits(precision: str, elements: int) -> float:
    """Bits of each of ``elements`` elements that codec none sends between stages."""
    return bits_of(wire_codec("none", precision), elements, PLAIN_BITS)


def moment_bytes(train: Mapping[str, Any], lora: Mapping[str, Any] | None = None) -> float:
    """Bytes that the optimiser's moments take for each parameter. ``lora``: the job's [model.lora]: the shorter side of
    an adapter's matrices is its rank, which counts where moments are rows and columns."""
    optimizer = str(train.get("optimizer", "adamw"))
    found = MOMENT_BYTES.get(optimizer, 8.0) * HALF[str(train.get("moments", "fp32"))]
    if optimizer == "adafactor" and lora:
        rank = lora.get("rank", 8)
        found += 4.0 * (1 + bool(lora.get("dora"))) / (rank if isinstance(rank, int) and rank > 0 else 1)
    return min(found, 4.0) if optimizer == "adafactor" else found


def error_bytes(updates: Mapping[str, Any], overlap: int, pipelines: int | None) -> float:
    """Bytes for each parameter of the residuals and server errors that rounds keep on the device. pipelines: None where
    the plan chooses their number."""
    codec, members = str(updates.get("codec", "none")), pipelines or USUAL
    return 4.0 * error_copies(updates, codec, pattern_of(updates, members), members, overlap)


def message_bytes(updates: Mapping[str, Any], pipelines: int | None, elements: float = math.inf) -> float:
    """Bytes for each parameter of a round's messages, which lie in main memory; where the device is a CPU, both are one
    memory. ``elements``: of a stage, as in ``message_copies``."""
    codec, members = str(updates.get("codec", "none")), pipelines or USUAL
    return 4.0 * message_copies(updates, codec, pattern_of(updates, members), members, elements)


def reference_bytes(updates: Mapping[str, Any]) -> float:
    """Bytes for each parameter of the reference and the outer optimiser's momentum; 0 in mode gradient."""
    if updates.get("mode", "gradient") != "delta":
        return 0.0
    kind, _, words = str(updates.get("outer", "average")).strip().partition(":")
    given = dict(word.strip().partition("=")[::2] for word in words.split(",") if "=" in word)
    momentum = given.get("momentum", "0.9" if kind == "nesterov" else "0").strip()
    return 4.0 + 4.0 * (momentum.strip("0.") != "")


def _table(job: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = job.get(name)
    if value is None:
        return {}
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


def _shape(model: Mapping[str, Any], data: Mapping[str, Any], folder: Path, vocabulary: int | None) -> Shape:
    if model.get("build"):
        raise PlanError("the job's model is built by code, so its layer sizes are only known in a run: give a Workload")
    content: Mapping[str, Any] = model
    if model.get("pretrained"):
        content = load_json(folder / str(model["pretrained"]) / "config.json")
    if vocabulary is None:
        vocabulary = BYTE_VOCABULARY if data.get("tokenizer", "bytes") == "bytes" else 50257
    return shape_of(content, None if model.get("context") is None else _whole(model, "context", 1), vocabulary)
