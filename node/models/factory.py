"""From a job to the definition of its model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...job.data.facts import Facts
from ...job.data.labelled import class_names
from ...job.schema import Job
from ...proto.errors import FarflungError
from .builds import sequential_model
from .classifier import AdaptedClassifier, ClassifierModel
from .decoders.families import check_classifier, check_decoder, fresh_config, stored_config
from .decoders.matrix_plan import matrix_plan
from .definition import LanguageModel, ModelDefinition
from .lora import LoraModel
from .preferences import PreferenceModel
from .subspace import SubspaceModel
from .weights.fetch import Fetch
from .weights.pretrained import read_config


def model_of(
    job: Job, facts: Facts | None, fetch: Fetch | None = None, allow_code: Sequence[str] | None = None
) -> ModelDefinition:
    """The definition of a job's model.

    ``facts`` may be None where the job itself gives vocabulary and context. ``fetch`` reads the artifacts
    "model/FILE" of a pretrained model (without it, the job's folder is read). ``allow_code`` lists the modules that
    ``build`` may import (None: any). Raises FarflungError for everything that is wrong with the model.
    """
    if job.model.parameters is not None:
        raise FarflungError(
            "the model of this run is its members' own",
            hint="join from your training loop: with farflung.group(LINK, model, optimizer) as g: ...",
        )
    if job.model.build is not None:
        return sequential_model(job, allow_code)
    vocabulary = facts.vocabulary if facts is not None else job.model.vocabulary
    context = job.model.context or (facts.context if facts is not None else None)
    if job.model.pretrained is not None:
        values = read_config(fetch, job.model.pretrained)
        classifies = job.train.task == "classification"
        check = check_classifier if classifies else check_decoder
        config = stored_config(values, context, job.model.dropout, check)
        _check_cut(job, config)
        _check_vocabulary(vocabulary, int(config.vocab_size), "of the pretrained model")
        balance = job.model.router_loss
        if balance is None:  # then do what transformers does with this configuration
            balance = float(values.get("router_aux_loss_coef") or 0.0) if values.get("output_router_logits") else 0.0
        if classifies:
            names = class_names(values, job.data.classes)
            if job.model.lora is not None:
                return AdaptedClassifier(config, names, job.model.lora, job.train.recompute is True, balance)
            return ClassifierModel(config, names, job.train.recompute is True, balance)
        if job.model.lora is not None:
            if job.train.task == "dpo":
                return PreferenceModel(config, job.model.lora, job.train.dpo_beta, job.train.recompute is True, balance)
            return LoraModel(config, job.model.lora, job.train.recompute is True, balance)
        return LanguageModel(config, job.train.recompute is True, balance=balance)
    if vocabulary is None or context is None:
        raise FarflungError("model.context is missing", hint="write context = a number of tokens under [model]")
    if job.model.vocabulary is not None:
        _check_vocabulary(vocabulary, job.model.vocabulary, "under [model]")
        vocabulary = job.model.vocabulary
    recompute = job.train.recompute is True
    if job.model.subspace is not None:
        config = fresh_config(job.model.model_copy(update={"tie": False}), vocabulary, context)
        return SubspaceModel(config, job.model.subspace, job.run.seed, recompute)
    fresh = fresh_config(job.model, vocabulary, context)
    _check_cut(job, fresh)
    return LanguageModel(fresh, recompute)


def _check_cut(job: Job, config: Any) -> None:
    """FarflungError if the job's ``parallel.inside`` cuts matrices and the family's matrices cannot be cut."""
    if job.parallel.inside in ("tp", "fsdp+tp"):
        matrix_plan(config)


def _check_vocabulary(tokens: int | None, rows: int, where: str) -> None:
    if tokens is not None and tokens > rows:
        raise FarflungError(
            f"the tokenizer has {tokens} tokens, but the vocabulary {where} has {rows}",
            hint="use the tokenizer that belongs to the model, or a larger vocabulary",
        )
