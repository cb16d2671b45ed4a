"""Mistakes in ``[data]``: its source, its files, and keys without a meaning for this source."""

from __future__ import annotations

from collections.abc import Iterator
from glob import glob
from pathlib import Path, PurePath

from ..data.patterns import as_glob
from ..schema import Job
from ..sentences import Mistake
from ..tables.data import SOURCES


def data_mistakes(job: Job, files: bool) -> Iterator[Mistake]:
    """Mistakes of ``[data]`` as a whole. ``files``: the data's files are on this machine, so check that they exist."""
    data = job.data
    given = [*data.sources(), *(name for name in ("mix", "build", "samples") if getattr(data, name))]
    if len(given) != 1:
        have = " and ".join(given) or "none of them"
        allowed = ", ".join((*SOURCES, "mix", "build", "samples"))
        yield ("data",), f"[data] needs exactly one of {allowed}; it has {have}"
        return
    if bool(data.samples) != bool(job.model.parameters):
        sentence = "data.samples and model.parameters go together: data and model are the members' own (farflung.group)"
        yield ("data",), sentence
    elif data.samples:
        yield from _own_mistakes(job)
    elif data.build:
        if not job.model.build:
            yield ("data", "build"), "data.build goes with model.build; a language model needs data.text or data.jsonl"
    elif data.mix:
        yield from _mix_mistakes(job, files)
    else:
        for key, patterns in ((given[0], data.source()[1]), ("validation", data.held_out())):
            for pattern in patterns:
                if data.where == "node":
                    if leaves_its_folder(pattern):
                        below = "is looked for below each node's --data FOLDER: write a path from there, without .."
                        yield ("data", key), f"data.{key}: {pattern} {below}"
                elif files and "://" not in pattern and not glob(as_glob(pattern), recursive=True):
                    yield ("data", key), f"data.{key}: there is no file {pattern}"
        if job.model.build and job.model.context is None:
            yield ("model",), "model.context is missing: text for model.build is cut into samples of that many tokens"
    yield from _chat_mistakes(job)
    yield from _labelled_mistakes(job)
    yield from _preference_mistakes(job)
    if data.where == "node":
        if job.run.steps is None:
            yield ("run", "epochs"), 'data.where = "node" needs run.steps: nobody knows how much data the nodes have'
        if job.parallel.stages != 1:
            yield (
                ("parallel", "stages"),
                'data.where = "node" needs parallel.stages = 1: the last stage would have to be told a node\'s tokens',
            )
    if files and data.tokenizer != "bytes" and not Path(data.tokenizer).is_dir():
        yield ("data", "tokenizer"), f'data.tokenizer: {data.tokenizer} is no folder; allowed: "bytes" or a folder'


def _mix_mistakes(job: Job, files: bool) -> Iterator[Mistake]:
    """Mistakes in the sources of a mixture."""
    data, key = job.data, ("data", "mix")
    for number, one in enumerate(data.mix or (), 1):
        if len(given := one.sources()) != 1:
            have = " and ".join(given) or "none of them"
            yield key, f"[[data.mix]] number {number} needs exactly one of {', '.join(SOURCES)}; it has {have}"
        for name, patterns in given.items():
            for pattern in patterns if files else ():
                if "://" not in pattern and not glob(as_glob(pattern), recursive=True):
                    yield key, f"data.mix.{name}: there is no file {pattern}"
    if data.held_out():
        yield ("data", "validation"), "data.validation must be a number where data.mix is given: a part of each source"
    if data.where == "node":
        yield ("data", "where"), 'data.mix does not go with data.where = "node": nobody else sees a node\'s files'
    if job.model.build:
        yield key, "data.mix needs a language model"


def _chat_mistakes(job: Job) -> Iterator[Mistake]:
    """Keys that can't be used with conversations, and keys without a meaning for other data."""
    data = job.data
    if data.chat is None and not any(one.chat for one in data.mix or ()):
        for name in ("turns", "pack"):
            if getattr(data, name) != type(data).model_fields[name].default:
                yield ("data", name), f"data.{name} is for data.chat; leave it out"
        return
    if job.model.build:
        yield ("data", "chat"), "data.chat needs a language model: the loss of model.build knows no turns"
    if data.where == "node":
        sentence = "not yet: data.chat with where = 'node': how many tokens of the others' samples train, nobody knows"
        yield ("data", "where"), sentence


def _labelled_mistakes(job: Job) -> Iterator[Mistake]:
    """Keys that can't be used with texts that have a class, and keys without a meaning for other data."""
    data, task = job.data, job.train.task
    each = [*(data.mix or (data,)), *job.eval.sets]
    if task != "classification":
        if any(one.labelled for one in each):
            sentence = "data.labelled has a class for each text"
            yield ("train", "task"), f'{sentence}; write task = "classification" under [train]'
        for name in ("pair", "label", "classes"):
            if getattr(data, name) != type(data).model_fields[name].default:
                yield ("data", name), f"data.{name} is for data.labelled; leave it out"
        return
    if not all(one.labelled for one in each):
        yield ("train", "task"), 'train.task = "classification" needs data.labelled, and so do its sets and mixtures'
    if data.classes and len(set(data.classes)) < len(data.classes):
        twice = next(name for name in data.classes if data.classes.count(name) > 1)
        yield ("data", "classes"), f"data.classes names {twice!r} twice, and a label of that name would mean both"
    if not job.model.pretrained:
        yield ("model",), 'train.task = "classification" needs model.pretrained: the folder of an encoder or a decoder'
    if data.where == "node":
        yield ("data", "where"), 'not yet: data.labelled with where = "node"'


def _preference_mistakes(job: Job) -> Iterator[Mistake]:
    """Keys that can't be used with pairs of answers, and keys without a meaning for other data."""
    data, model = job.data, job.model
    each = [*(data.mix or (data,)), *job.eval.sets]
    if job.train.task != "dpo":
        if any(one.preferences for one in each):
            yield ("train", "task"), 'data.preferences has pairs of answers; write task = "dpo" under [train]'
        if job.train.dpo_beta != type(job.train).model_fields["dpo_beta"].default:
            yield ("train", "dpo_beta"), 'train.dpo_beta is for task = "dpo"; leave it out'
        return
    if not all(one.preferences for one in each):
        yield ("train", "task"), 'train.task = "dpo" needs data.preferences, and so do its sets and mixtures'
    if model.lora is None:
        sentence = 'train.task = "dpo" needs model.lora: answers are measured against the base without adapters'
        yield ("model",), f"{sentence}, and a second whole model has no room"
    if model.context is not None and model.context % 2:
        sentence = f"model.context = {model.context} has no two halves, one for each of a pair's answers"
        yield ("model", "context"), f"{sentence}; write an even number"
    if data.where == "node":
        yield ("data", "where"), 'not yet: data.preferences with where = "node"'


def leaves_its_folder(pattern: str) -> bool:
    """Whether a file pattern may lead outside the folder to which it is relative."""
    path = PurePath(pattern)
    return "://" in pattern or "::" in pattern or path.is_absolute() or pattern.startswith("~") or ".." in path.parts


def _own_mistakes(job: Job) -> Iterator[Mistake]:
    """Keys without a meaning where members use model and optimiser of their own, because their training loop decides
    these."""
    if job.data.where != "coordinator":
        yield ("data", "where"), "data.where has no meaning with data.samples: the members' data are their own anyway"
    for name, field in type(job.train).model_fields.items():
        if name not in ("batch", "microbatch", "clip") and getattr(job.train, name) != field.default:
            yield ("train", name), f"train.{name} is decided by the members' own loop; leave it out"
    if job.train.microbatch == "auto":
        yield ("train", "microbatch"), "train.microbatch is what a member's share is a multiple of: give a number"
