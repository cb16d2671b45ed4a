"""The data of a run: tokenised once into one file that is named by its content, and cut into fixed samples.

The text is cut into windows of ``context + 1`` tokens with stride ``context``. Those held out for validation are spread
evenly over it, whatever the job's seed. The file holds the training windows in order, then the validation windows: a
matrix of rows, so that a sample's id is its row.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..proto.errors import JobError
from ..proto.job import Job
from ..proto.jobfile import pretrained_config
from ..proto.progress import Meter, Tell, silent
from .documents import documents, token_arrays
from .tokenizer import Tokenizer

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


def tokenise(job: Job, tokenizer: Tokenizer, context: int, folder: Path, tell: Tell = silent) -> TokenFile:
    """Read the job's text, tokenise it, write FOLDER/<sha256>. JobError: no text, or too little for one sample.

    Both passes stream: the tokens wait in a file beside the one that they end in, never in memory. ``tell`` hears how
    far it is, from this thread.
    """
    dtype = token_dtype(tokenizer.vocabulary)
    kind, patterns = job.data.source()
    meter = Meter("tokenising", "tokens", tell)
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as files:

        def windows(names: Sequence[str]) -> npt.NDArray[Any]:
            spool = files.enter_context(tempfile.NamedTemporaryFile(dir=folder, prefix=".tokens-"))
            for piece in _token_arrays(kind, names, job.data.field, tokenizer):
                spool.write(np.asarray(piece, dtype=dtype).data)
                meter.add(len(piece))
            spool.flush()
            return _windows(Path(spool.name), dtype, context, kind, ", ".join(names))

        parts = [windows(patterns)]
        if job.data.held_out():
            parts.append(windows(job.data.held_out()))
            kept, held = np.arange(len(parts[0])), np.arange(len(parts[1]))
        else:
            assert isinstance(job.data.validation, float)
            held, kept = split(len(parts[0]), job.data.validation)
        if kept.size == 0:
            count = len(parts[0])
            raise JobError(f"data.validation = {job.data.validation} leaves no training sample of {count}", "lower it")
        path, digest = _write(folder, itertools.chain(_rows(parts[0], kept), _rows(parts[-1], held)))
    return TokenFile(path, digest, dtype, context, int(kept.size), int(held.size))


def _token_arrays(kind: str, patterns: Sequence[str], field: str, tokenizer: Tokenizer) -> Iterator[npt.NDArray[Any]]:
    if kind == "tokens":
        return token_arrays(patterns, tokenizer.vocabulary)
    return tokenizer.encode(documents(kind, patterns, field))


def _windows(spool: Path, dtype: str, context: int, kind: str, names: str) -> npt.NDArray[Any]:
    """The windows of a file of tokens, a view [windows, context + 1] of the file. JobError: too few tokens for one."""
    size = spool.stat().st_size // np.dtype(dtype).itemsize
    count = count_windows(size, context, kind, names)
    tokens = np.memmap(spool, dtype, mode="r", shape=(size,))
    return np.lib.stride_tricks.sliding_window_view(tokens, context + 1)[::context][:count]


def count_windows(tokens: int, context: int, kind: str, names: str) -> int:
    """How many windows so many tokens have. JobError: none."""
    if tokens == 0:
        raise JobError(f"the text is empty: {names}", f"data.{kind} must name files with text in them")
    if tokens <= context:
        need = f"one sample of model.context = {context} needs {context + 1}"
        raise JobError(f"the text is too short: {tokens} tokens in {names}; {need}", "add text or lower the context")
    return (tokens - 1) // context


def _rows(windows: npt.NDArray[Any], order: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[Any]]:
    return (windows[order[at : at + _ROWS]] for at in range(0, len(order), _ROWS))


def token_dtype(vocabulary: int) -> str:
    """The smallest of uint8, uint16, uint32 that holds every token."""
    return "uint8" if vocabulary <= 2**8 else "uint16" if vocabulary <= 2**16 else "uint32"


def count_held(windows: int, validation: float) -> int:
    """How many windows are held out: at least one if any is wanted and two exist."""
    return max(round(windows * validation), int(validation > 0 and windows > 1))


def split(windows: int, validation: float) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(validation, training) window numbers, ascending."""
    count = count_held(windows, validation)
    held = (2 * np.arange(count) + 1) * windows // (2 * max(count, 1))
    kept = np.ones(windows, bool)
    kept[held] = False
    return held, np.flatnonzero(kept)


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
