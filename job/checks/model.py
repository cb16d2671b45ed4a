"""Mistakes in ``[model]``, and in dividing the model into stages."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from ...proto.errors import JobError
from ..model_folder.config import block_count, pretrained_config
from ..schema import Job
from ..sentences import Mistake, allowed
from ..tables.model import SUBSPACE_FAMILIES


def model_mistakes(job: Job, files: bool) -> Iterator[Mistake]:
    """Mistakes of ``[model]``. ``files``: the model folder is on this machine, so read its config.json."""
    model = job.model
    given = [name for name in ("family", "pretrained", "build", "parameters") if getattr(model, name) is not None]
    if len(given) != 1:
        have = f"both {' and '.join(given)}" if given else "none of them"
        yield ("model",), f"[model] needs exactly one of family, pretrained, build, parameters; it has {have}"
        return
    shape = [
        name
        for name in ("layers", "width", "heads", "vocabulary", "kv_heads", "tie", "subspace")
        if getattr(model, name) is not None
    ]
    if given != ["family"] and shape:
        keys = ", ".join(f"model.{name}" for name in shape)
        yield ("model", shape[0]), f"{keys} cannot be given with model.{given[0]}, which decides it; leave it out"
    if model.family:
        for name in ("layers", "width", "heads", "context"):
            if getattr(model, name) is None:
                yield ("model",), f"model.{name} is missing; allowed: {allowed(('model', name))}"
        if model.width and model.heads and model.width % model.heads:
            yield ("model", "width"), f"model.width = {model.width} is not a multiple of model.heads = {model.heads}"
        if model.kv_heads and model.heads and model.heads % model.kv_heads:
            yield (
                ("model", "kv_heads"),
                f"model.kv_heads = {model.kv_heads} does not divide model.heads = {model.heads}",
            )
        if model.kv_heads and model.family in ("gpt2", "gpt_neox"):
            yield ("model", "kv_heads"), f"model.kv_heads has no meaning in the family {model.family}; leave it out"
    if model.subspace is not None:
        yield from subspace_mistakes(job)
    if model.dropout and given[0] in ("build", "parameters"):
        sentence = f"model.dropout = {model.dropout} is for language models"
        yield ("model", "dropout"), f"{sentence}; a model of your own has nn.Dropout where it wants it: leave it out"
    if model.pretrained and files:
        yield from pretrained_mistakes(model.pretrained, job.train.task)
    if model.lora is not None:
        if not model.pretrained:
            yield ("model", "lora"), "model.lora needs model.pretrained, the model beside which adapters train"
        if model.lora.base == "bf16" and job.train.precision != "bf16":
            sentence = 'model.lora.base = "bf16" computes in bf16'
            yield ("model", "lora", "base"), f'{sentence}: it needs train.precision = "bf16"'
    stages, layers = job.parallel.stages, block_count(job) if files else model.layers
    if model.lora is not None and stages != "auto" and layers and stages > layers:
        sentence = f"parallel.stages = {stages} is more than the model's {layers} blocks"
        yield ("parallel", "stages"), f"{sentence}, and with model.lora each stage needs one"
        return
    if stages != "auto" and layers and stages > layers + 2:
        sentence = f"parallel.stages = {stages} is more than the model's {layers + 2} layers"
        yield ("parallel", "stages"), f"{sentence} (embedding, {layers} blocks, head)"


def subspace_mistakes(job: Job) -> Iterator[Mistake]:
    """Keys that can't be used with a subspace, where stages send only a part of the hidden state."""
    model, key = job.model, ("model", "subspace")
    sentence = f"model.subspace = {model.subspace}"
    if model.family not in SUBSPACE_FAMILIES:
        yield (
            key,
            f"{sentence} is for models that begin with random weights; allowed with family = "
            f"{', '.join(SUBSPACE_FAMILIES)}",
        )
    if model.width and model.subspace is not None and model.subspace >= model.width:
        yield key, f"{sentence} is not less than model.width = {model.width}; leave it out to hand on everything"
    if model.tie:
        yield ("model", "tie"), f"model.tie = true does not go with {sentence}: most of the embedding is fixed"
    if model.dropout:
        why = "each stage makes what is fixed again, and knows no mask of it"
        yield ("model", "dropout"), f"model.dropout = {model.dropout} does not go with {sentence}: {why}; allowed: 0"


def pretrained_mistakes(folder: str, task: str = "language") -> Iterator[Mistake]:
    key = ("model", "pretrained")
    try:
        config = pretrained_config(folder)
    except JobError as error:
        yield key, str(error)
        return
    family = config.get("model_type")
    if not isinstance(family, str) or not family:
        yield key, f"model.pretrained = {folder!r}: its config.json names no model_type"
    if not any(Path(folder).glob("*.safetensors")):
        if any(Path(folder).glob("*.bin")):
            auto = "SequenceClassification" if task == "classification" else "CausalLM"
            code = "from sys import argv; from transformers import AutoModelFor" + auto
            code += " as A; A.from_pretrained(argv[1]).save_pretrained(argv[1])"
            how = f"transformers opens them as weights only: python -c '{code}' {shlex.quote(folder)}"
            yield key, f"model.pretrained = {folder!r} has pickled weights alone, which farflung does not open; {how}"
            return
        yield key, f"model.pretrained = {folder!r} has no *.safetensors; save it with safe_serialization=True"
