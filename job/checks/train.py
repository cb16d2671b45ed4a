"""Mistakes in ``[run]`` and ``[train]``: batch, optimiser, schedule."""

from __future__ import annotations

from collections.abc import Iterator

from ..schema import Job, Train
from ..sentences import Mistake, allowed


def train_mistakes(job: Job) -> Iterator[Mistake]:
    """Mistakes of batch and microbatches, and keys that can't be used with an optimiser or a schedule."""
    train, run = job.train, job.run
    if (run.epochs is None) == (run.steps is None):
        which = "not both" if run.epochs else "it has neither"
        yield ("run", "epochs"), f"[run] needs epochs or steps, {which}"
    if isinstance(train.microbatch, int) and (train.microbatch < 1 or train.batch % train.microbatch):
        own = train.microbatch
        near = [size for size in range(1, train.batch + 1) if train.batch % size == 0]
        near = sorted(sorted(near, key=lambda size: abs(size - own))[:3])
        sentence = f"train.microbatch = {own} does not divide train.batch = {train.batch}"
        yield ("train", "microbatch"), f"{sentence}; allowed near it: {', '.join(map(str, near))}"
    elif job.parallel.pipelines != "auto" and train.most_microbatches < job.parallel.pipelines:
        most = train.most_microbatches
        sentence = f"parallel.pipelines = {job.parallel.pipelines} is more than the {most} microbatches"
        yield ("parallel", "pipelines"), f"{sentence} of a step (train.batch / train.microbatch); each needs one"
    if not all(0 <= beta < 1 for beta in train.betas):
        yield ("train", "betas"), f"train.betas = {list(train.betas)}: allowed is {allowed(('train', 'betas'))}"
    if train.optimizer == "onebit_adam":
        if job.updates.mode != "gradient":
            sentence = "train.optimizer = 'onebit_adam' averages momentum every step"
            yield ("train", "optimizer"), f'{sentence}; it needs updates.mode = "gradient"'
        elif not job.updates.dense_rounds:
            sentence = "train.optimizer = 'onebit_adam' needs updates.dense_rounds, the steps before it freezes"
            yield ("train", "optimizer"), f"{sentence}; some 15 % of all steps"
    if ":" in train.optimizer:
        sentence = f"train.optimizer = {train.optimizer!r}"
        if job.updates.mode != "delta":
            why = "nobody knows whether its steps have the same bits on every device"
            yield ("train", "optimizer"), f'{sentence}: {why}; it needs updates.mode = "delta"'
        if train.offload_kind != "none":
            yield ("train", "offload"), f"train.offload has no meaning with {sentence}, which has moments of its own"
    yield from offload_mistakes(job)
    if train.optimizer == "muon":
        if job.updates.mode != "delta":
            sentence = "train.optimizer = 'muon' multiplies matrices, whose last bits differ from device to device"
            yield ("train", "optimizer"), f'{sentence}; it needs updates.mode = "delta"'
        if job.model.build is not None:
            sentence = "train.optimizer = 'muon' is for language models, whose embedding and head are known"
            yield ("train", "optimizer"), f"{sentence}; allowed with model.build: adamw, sgd, lamb, lion, a function"
    if train.compile and job.model.lora is not None and job.model.lora.base in ("int8", "nf4"):
        sentence = f"not yet: train.compile with model.lora.base = {job.model.lora.base!r}"
        yield ("train", "compile"), f"{sentence}; write compile = false"
    dropout = job.model.dropout or (job.model.lora is not None and job.model.lora.dropout)
    if train.compile and (dropout or job.model.parameters):
        why = "masks of dropout are drawn by sample" if dropout else "members compute with loops of their own"
        yield ("train", "compile"), f"not yet: train.compile where {why}; write compile = false"
    yield from inside_mistakes(job)
    if train.precision == "fp16" and job.model.parameters:
        why = "members compute with loops of their own, and scale their losses themselves"
        yield ("train", "precision"), f'train.precision = "fp16" has no meaning where {why}; allowed: "fp32"'
    if train.precision == "fp16" and train.optimizer == "onebit_adam":
        why = "its freeze is at a step of the run, and steps that overflow are none of its own"
        sentence = 'train.precision = "fp16" does not go with onebit_adam'
        yield ("train", "precision"), f"{sentence}: {why}; allowed: fp32, bf16"
    usual = type(train).model_fields["loss_scale_steps"].default  # a job that came over the wire has set all keys
    if train.loss_scale_steps != usual and train.precision != "fp16":
        sentence = f"train.loss_scale_steps belongs to fp16; precision {train.precision} has no loss scale"
        yield ("train", "loss_scale_steps"), f"{sentence}: leave it out"
    if train.cooldown_steps and train.decay in ("cosine", "linear"):
        sentence = f"train.cooldown_steps has no meaning with decay = {train.decay!r}, which ends at its floor anyway"
        yield ("train", "cooldown_steps"), f"{sentence}; allowed with wsd, inverse_sqrt, none"
    if train.moments != "fp32" and train.optimizer not in ("adamw", "lamb", "lion", "muon"):
        sentence = f"train.moments = {train.moments!r} is for adamw, lamb, lion and muon, not for {train.optimizer}"
        yield ("train", "moments"), f'{sentence}; allowed: "fp32"'
    for key in ("betas", "eps") if train.optimizer == "adafactor" else ():
        if getattr(train, key) != Train.model_fields[key].default:
            why = "it has no first moment, and its second keeps 1 - t^-0.8 of itself at step t"
            yield ("train", key), f"train.{key} has no meaning with adafactor: {why}; leave it out"
    if train.momentum and train.optimizer != "sgd":
        has = "no first moment" if train.optimizer == "adafactor" else "betas"
        yield ("train", "momentum"), f"train.momentum belongs to sgd; {train.optimizer} has {has}"


def offload_mistakes(job: Job) -> Iterator[Mistake]:
    """Keys that can't be used where sections lie in main memory beside a GPU."""
    train, kind = job.train, job.train.offload_kind
    if kind not in ("optimizer", "parameters"):
        return
    sentence = f'train.offload = "{kind}" does not go with'
    if job.model.parameters:
        yield ("train", "offload"), f'{sentence} model.parameters, whose members compute elsewhere; allowed: "none"'
    if job.parallel.inside != "ddp":
        why = "whose islands keep their sections in main memory anyway"
        yield ("train", "offload"), f'{sentence} parallel.inside = "{job.parallel.inside}", {why}; allowed: "none"'
    if kind == "parameters" and train.recompute is not True:
        why = "a backward pass that keeps what blocks computed with keeps their weights on the GPU"
        yield ("train", "offload"), f"{sentence} train.recompute = false: {why}; write recompute = true"
    if kind == "parameters" and train.compile:
        yield ("train", "offload"), f"{sentence} train.compile yet; write compile = false"


def inside_mistakes(job: Job) -> Iterator[Mistake]:
    """Keys that can't be used with islands whose devices shard their stages (parallel.inside)."""
    inside = job.parallel.inside
    if inside in ("ddp", "auto"):  # a plan chooses only what goes with the other keys
        return
    sentence = f'parallel.inside = "{inside}" does not go with'
    if job.model.lora is not None:
        why = "weights that do not train are not cut"
        yield ("parallel", "inside"), f'{sentence} model.lora yet: {why}; allowed: "ddp"'
    if job.train.task == "classification":
        yield ("train", "task"), f'{sentence} train.task = "classification" yet; write inside = "ddp" under [parallel]'
    if job.updates.judge:
        yield ("updates", "judge"), f"{sentence} updates.judge, who computes with whole weights; allowed: 0"
    if job.train.compile:
        yield ("train", "compile"), f"{sentence} train.compile yet; write compile = false"
    if job.model.build is not None:
        yield ("parallel", "inside"), f'{sentence} model.build yet; allowed: "ddp"'
    if "tp" in inside and job.model.dropout:
        yield ("model", "dropout"), f"{sentence} model.dropout yet: cut heads would draw other masks; allowed: 0"
