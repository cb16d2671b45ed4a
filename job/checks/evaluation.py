"""Mistakes in ``[eval]``, in combinations of values that are each allowed alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from glob import glob

from ..data.patterns import as_glob
from ..schema import Job
from ..sentences import Mistake
from ..tables.data import SOURCES


def set_mistakes(job: Job, files: bool) -> Iterator[Mistake]:
    """Mistakes of ``[[eval.sets]]``. ``files``: the files that it names are on this machine, so check that they
    exist."""
    key, sets = ("eval", "sets"), job.eval.sets
    for name, count in Counter(one.name.lower() for one in sets).items():
        if count > 1:
            yield key, f"[[eval.sets]]: {count} of them have the name {name!r}; each needs one of its own"
    for one in sets:
        if len(given := one.sources()) != 1:
            have = " and ".join(given) or "none of them"
            yield key, f"[[eval.sets]] {one.name!r} needs exactly one of {', '.join(SOURCES)}; it has {have}"
        for source, patterns in given.items():
            for pattern in patterns if files else ():
                if "://" not in pattern and not glob(as_glob(pattern), recursive=True):
                    yield key, f"eval.sets.{source}: there is no file {pattern}"
    if sets and (job.model.build or not job.data.is_text):
        yield key, "eval.sets needs a language model: data.build holds its own samples out"


def command_mistakes(job: Job) -> Iterator[Mistake]:
    """Mistakes of ``eval.command`` and ``eval.patience``."""
    command, every, saved = job.eval.command, job.eval.command_every, job.checkpoint.every
    if command is not None and not any("{model}" in word for word in command):
        sentence = "eval.command does not say where it takes the model folder"
        yield ("eval", "command"), f"{sentence}: write {{model}} where its name belongs"
    if every and (not saved or every % saved):
        sentence = f"eval.command_every = {every} is no multiple of checkpoint.every = {saved}"
        yield ("eval", "command_every"), f"{sentence}: the command looks at checkpoints"
    if every and command is None:
        yield ("eval", "command_every"), "eval.command_every is for eval.command; leave it out"
    if job.eval.patience and not (job.train.eval_every or job.train.eval_epochs):
        sentence = "eval.patience counts evaluations, and train.eval_every = 0 makes one at the end alone"
        yield ("eval", "patience"), f"{sentence}; write a number of steps"
    if job.train.eval_epochs and job.data.where == "node":
        sentence = 'train.eval_epochs does not go with data.where = "node": nobody knows how much data the nodes have'
        yield ("train", "eval_epochs"), f"{sentence}; write eval_every"
    if job.eval.patience and job.model.parameters:
        yield ("eval", "patience"), "eval.patience: the members' own loop evaluates for itself (farflung.group)"
    if job.eval.patience and not job.eval.sets and job.data.validation == 0.0:
        yield ("eval", "patience"), "eval.patience: nothing is held out; write data.validation, or [[eval.sets]]"
