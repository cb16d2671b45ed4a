"""Changes of a job: which keys may differ when a run resumes, and which may be set during the run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from ..proto.errors import JobError
from .checks.whole import job_mistakes
from .schema import CheckCodec, Job
from .sentences import nearest, schema_mistakes, shown
from .tables.data import SOURCES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


_RESUMABLE = {
    ("run", "steps"),
    ("run", "epochs"),
    ("updates", "codec"),
    ("activations", "forward"),
    ("activations", "backward"),
    ("activations", "by_link"),
    ("train", "learning_rate"),
    ("train", "min_learning_rate_ratio"),
    ("train", "warmup_steps"),
    ("train", "decay"),
    ("train", "cooldown_steps"),
    ("train", "eval_every"),
    ("train", "eval_epochs"),
    ("parallel", "min_nodes"),
    ("checkpoint", "every"),
    ("checkpoint", "keep"),
    ("eval", "patience"),
    ("eval", "command"),
    ("eval", "command_every"),
}


_NOT_WHILE_IT_RUNS = {
    ("parallel", "min_nodes"),
    ("train", "eval_epochs"),
    ("eval", "command"),
    ("eval", "command_every"),
}
_SETTABLE = sorted(".".join(key) for key in _RESUMABLE - _NOT_WHILE_IT_RUNS)


_FILES = {("data", name) for name in (*SOURCES, "validation", "tokenizer", "mix")}


_FILES |= {("model", "pretrained"), ("eval", "sets")}


def refused_changes(old: Job, new: Job) -> list[str]:
    """The keys that differ between a run's job and the one it is resumed with although they may not change, with both
    values.

    Files may have other names (``moved_files``), because they are compared by their digests.
    """
    return [
        f"{'.'.join(key)} ({shown(before)} -> {shown(after)})"
        for key, before, after in _changes(old, new)
        if key[0] != "checkpoint" and key not in _RESUMABLE and key not in _FILES
    ]


def moved_files(old: Job, new: Job) -> bool:
    """Whether two jobs name different files, for example on another machine."""
    return any(key in _FILES for key, _, _ in _changes(old, new))


def _changes(old: Job, new: Job) -> Iterator[tuple[tuple[str, str], Any, Any]]:
    before, after = old.model_dump(mode="json"), new.model_dump(mode="json")
    for table, values in after.items():
        for name, value in values.items():
            if value != before[table][name]:
                yield (table, name), before[table][name], value


def with_value(job: Job, text: str, check_codec: CheckCodec | None = None) -> tuple[Job, str]:
    """(the job with ``KEY=VALUE`` applied, the key). The key has to be one that may change during the run.

    A key's last word suffices where it is unambiguous. A value is written as in a job file; quotes may be left out.
    JobError for other text.
    """
    wished, equals, value = (part.strip() for part in text.partition("="))
    known = [key for key in _SETTABLE if wished in (key, key.partition(".")[2])]
    hint = f"what may be changed while a run goes on: {', '.join(_SETTABLE)}"
    if not equals or not value:
        raise JobError(f"{text!r} is not KEY=VALUE", "write it like train.learning_rate=0.0005")
    if len(known) != 1:
        raise JobError(f"{wished} cannot be changed while the run goes on{nearest(wished, _SETTABLE)}", hint)
    table, _, name = known[0].partition(".")
    raw = job.model_dump(mode="json")
    raw["checkpoint"]["options"] = job.checkpoint.options  # model_dump leaves these out
    raw[table][name] = _value(value)
    if table == "run":
        raw[table]["epochs" if name == "steps" else "steps"] = None
    try:
        changed = Job.model_validate(raw)
    except ValidationError as error:
        raise JobError("; ".join(sentence for _, sentence in schema_mistakes(error, raw)), hint) from None
    mistakes = [sentence for _, sentence in job_mistakes(changed, check_codec)]
    if mistakes:
        raise JobError("; ".join(mistakes), "the run goes on as it was")
    return changed, known[0]


def _value(text: str) -> Any:
    """A value parsed as TOML; text that is no TOML value becomes a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:  # TOMLDecodeError is one, and so is that of a number of thousands of digits
        return text
