"""Reads a job file. One message lists every mistake with file, line, key, the allowed values and the nearest word.

tomllib keeps no positions, so :func:`key_lines` finds the line of every key with a small scanner of its own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from ..proto.errors import JobError
from .checks.whole import job_mistakes
from .key_lines import key_lines
from .model_folder import hub
from .schema import CheckCodec, Job
from .sentences import Key, Mistake, schema_mistakes
from .tables.data import Mixed
from .tables.evaluation import EvalSet

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Source = TypeVar("Source", Mixed, EvalSet)


def load_job(path: str | Path, check_codec: CheckCodec | None = None, files: bool = True) -> Job:
    """Read and check a job file; relative paths in it are taken from its folder. JobError names every mistake.

    files: whether to check that the files that it names exist; a plan needs no data.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise JobError(f"there is no job file {path}", "`farflung job init` writes one") from None
    except IsADirectoryError:
        raise JobError(f"{path} is a folder, not a job file", f"name the file, e.g. {path / 'job.toml'}") from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise JobError(f"cannot read the job file {path}: {why}", "`farflung job init` writes one") from None
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise JobError(f"{path} is not TOML: {error}", _toml_hint(text, str(error))) from None
    except ValueError:  # Python reads 4,300 digits
        hint = "write one that a machine can hold"
        raise JobError(f"{path} has a whole number of thousands of digits", hint) from None
    lines = key_lines(text)
    try:
        job = Job.model_validate(raw)
    except ValidationError as error:
        raise _job_error(path, lines, list(schema_mistakes(error, raw))) from None
    job = _resolved(job, path, files)
    mistakes = list(job_mistakes(job, check_codec, files))
    if mistakes:
        raise _job_error(path, lines, mistakes)
    return job


def _toml_hint(text: str, problem: str) -> str:
    """What to write instead, by the line that the problem names."""
    named = re.search(r"line (\d+)", problem)
    line = text.splitlines()[int(named[1]) - 1 :][:1] if named else []
    if line and re.search(r'"[^"]*\\', line[0]):
        return r"in double quotes a \ begins an escape: write the path in single quotes, 'C:\data\*.txt', or with /"
    return 'strings need quotes: name = "x"'


def run_name(path: Path) -> str:
    """The name of a run whose job file has none: the file's name, with characters that a run's name may have."""
    return re.sub(r"[^\w.-]", "-", path.stem)


def _job_error(path: Path, lines: dict[Key, int], mistakes: list[Mistake]) -> JobError:
    """One error of all mistakes, in the order of the file."""
    placed = []
    for key, sentence in mistakes:
        line = next((lines[key[:length]] for length in range(len(key), 0, -1) if key[:length] in lines), 0)
        placed.append((line or 10**9, f"{path}:{line}: {sentence}" if line else f"{path}: {sentence}"))
    placed.sort(key=lambda item: item[0])
    count = "" if len(placed) == 1 else f" ({len(placed)} mistakes)"
    return JobError("\n".join(text for _, text in placed), f"edit {path} and start again{count}")


def _resolved(job: Job, path: Path, files: bool) -> Job:
    """The job with absolute paths (relative ones begin at the job file's folder), the hub's names replaced by folders
    of its cache, and a run's name. ``files``: weights are needed too."""
    folder = path.resolve().parent

    def absolute(text: str) -> str:
        return text if "://" in text else str(folder / Path(text).expanduser())

    patterns = {**job.data.sources(), **({"validation": job.data.held_out()} if job.data.held_out() else {})}
    if job.data.where == "node":
        patterns = {}  # each node resolves them in a folder of its own
    data: dict[str, Any] = {name: [absolute(pattern) for pattern in some] for name, some in patterns.items()}

    def moved(one: Source) -> Source:
        own = {name: [absolute(pattern) for pattern in some] for name, some in one.sources().items()}
        return one.model_copy(update=own)

    if job.data.mix:
        data["mix"] = [moved(one) for one in job.data.mix]

    def found(text: str, key: str, patterns: Sequence[str]) -> str:
        if not hub.is_name(text) or (folder / text).exists():
            return absolute(text)
        return hub.folder_of(text, key, patterns)

    tokenizer, pretrained = job.data.tokenizer, job.model.pretrained
    if tokenizer != "bytes":
        tokenizer = found(tokenizer, "data.tokenizer", hub.WORDS)
    if pretrained is not None:
        pretrained = found(pretrained, "model.pretrained", hub.WEIGHTS if files else hub.CONFIG)
    return job.model_copy(
        update={
            "run": job.run.model_copy(update={"name": job.run.name or run_name(path)}),
            "data": job.data.model_copy(update={**data, "tokenizer": tokenizer}),
            "model": job.model.model_copy(update={"pretrained": pretrained}),
            "eval": job.eval.model_copy(update={"sets": [moved(one) for one in job.eval.sets]}),
        }
    )
