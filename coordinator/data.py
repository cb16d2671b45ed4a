"""The data of a run: tokenised once into one file that is named by its content, and cut into fixed samples.

The text is cut into windows of ``context + 1`` tokens with stride ``context``. A fixed permutation of the
windows (its key is a constant, never the job's seed) picks those held out for validation. The file holds the
training windows in order, then the validation windows: a matrix of rows, so that a sample's id is its row.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..proto.errors import JobError
from ..proto.job import Job
from ..proto.jobfile import pretrained_config
from ..proto.sampling import permutation
from .tokenizer import Tokenizer

VALIDATION_KEY = 0x76616C6964
DEFAULT_CONTEXT = 1024
_ROWS = 4096  # rows written at once


@dataclass(frozen=True)
class TokenFile:
    """A tokenised corpus: ``path`` = FOLDER/``digest`` (sha256), rows of ``context + 1`` little-endian ``dtype``."""

    path: Path
    digest: str
    dtype: str
    context: int
    samples: int
    validation_samples: int


def model_sizes(job: Job, tokenizer: Tokenizer | None) -> tuple[int, int]:
    """(context, vocabulary) of the model, JobError when they do not fit the tokenizer or each other."""
    context, vocabulary = job.model.context, job.model.vocabulary
    if job.model.pretrained:
        config = pretrained_config(job.model.pretrained)
        limit = config.get("n_positions", config.get("max_position_embeddings"))
        vocabulary = config.get("vocab_size")
        context = context or min(int(limit or DEFAULT_CONTEXT), DEFAULT_CONTEXT)
        if limit and context > limit:
            raise JobError(f"model.context = {context} is more than the {limit} positions of {job.model.pretrained}")
    known = tokenizer.vocabulary if tokenizer else 0
    if vocabulary is None:
        vocabulary = known
    if vocabulary < known:
        where = "model.pretrained's vocab_size" if job.model.pretrained else "model.vocabulary"
        hint = "use the tokenizer that belongs to the model" if job.model.pretrained else f"write {known} or more"
        raise JobError(f"{where} = {vocabulary} is less than the {known} tokens of data.tokenizer", hint)
    return context or 0, vocabulary


def tokenise(job: Job, tokenizer: Tokenizer, context: int, folder: Path) -> TokenFile:
    """Read the job's text, tokenise it, write FOLDER/<sha256>. JobError: no text, or too little for one sample."""
    dtype = token_dtype(tokenizer.vocabulary)
    pieces = [np.asarray(tokens, dtype=dtype) for tokens in tokenizer.encode(_documents(job))]
    tokens = np.concatenate(pieces) if pieces else np.zeros(0, dtype=dtype)
    names = ", ".join(job.data.text or job.data.jsonl or [])
    if tokens.size == 0:
        raise JobError(f"the text is empty: {names}", "data.text or data.jsonl must name files with text in them")
    windows = (tokens.size - 1) // context
    if windows < 1:
        need = f"one sample of model.context = {context} needs {context + 1}"
        raise JobError(
            f"the text is too short: {tokens.size} tokens in {names}; {need}", "add text or lower the context"
        )
    held, kept = split(windows, job.data.validation)
    if kept.size == 0:
        raise JobError(f"data.validation = {job.data.validation} leaves no training sample of {windows}", "lower it")
    rows = np.lib.stride_tricks.sliding_window_view(tokens, context + 1)[::context][:windows]
    order = np.concatenate([kept, held])
    folder.mkdir(parents=True, exist_ok=True)
    path, digest = _write(folder, (rows[order[at : at + _ROWS]] for at in range(0, len(order), _ROWS)))
    return TokenFile(path, digest, dtype, context, int(kept.size), int(held.size))


def token_dtype(vocabulary: int) -> str:
    """The smallest of uint8, uint16, uint32 that holds every token."""
    return "uint8" if vocabulary <= 2**8 else "uint16" if vocabulary <= 2**16 else "uint32"


def split(windows: int, validation: float) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(validation, training) window numbers, ascending; at least one for validation if any is wanted and two exist."""
    count = round(windows * validation)
    if validation > 0 and windows > 1:
        count = max(count, 1)
    order = permutation(VALIDATION_KEY, 0, windows)
    return np.sort(order[:count]), np.sort(order[count:])


def _write(folder: Path, blocks: Iterator[npt.NDArray[Any]]) -> tuple[Path, str]:
    """Blocks into FOLDER/<sha256 of all bytes>, complete or not there at all."""
    unfinished = folder / f".tokens-{os.getpid()}"
    hasher = hashlib.sha256()
    with unfinished.open("wb") as file:
        for block in blocks:
            raw = np.ascontiguousarray(block, dtype=block.dtype.newbyteorder("<")).tobytes()
            hasher.update(raw)
            file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    path = folder / hasher.hexdigest()
    unfinished.replace(path)
    return path, hasher.hexdigest()


def _documents(job: Job) -> Iterator[str]:
    """The texts of the job, files in the order of their patterns, then of their names."""
    data = job.data
    for pattern in data.text or data.jsonl or []:
        found = sorted(glob(pattern, recursive=True))
        if not found:
            raise JobError(f"data: there is no file {pattern}")
        for name in found:
            path = Path(name)
            if path.is_dir():
                continue
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise JobError(f"data: cannot read {name}: {error}", "text must be UTF-8") from None
            if data.text:
                yield text
            else:
                yield from _jsonl(name, text, data.field)


def _jsonl(name: str, text: str, field: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except ValueError as error:
            raise JobError(f"{name}:{number}: not JSON: {error}", "data.jsonl wants one object a line") from None
        value = item.get(field) if isinstance(item, dict) else None
        if not isinstance(value, str):
            keys = ", ".join(item) if isinstance(item, dict) else "no object"
            raise JobError(f"{name}:{number}: no text under {field!r}; it has: {keys}", "set data.field to one of them")
        yield value
