"""The data of a run: tokenised into one file that is named by its content, and cut into fixed samples.

The text is cut into windows of ``context + 1`` tokens with stride ``context``. Those held out for validation are spread
evenly over the text, independent of the job's seed. The file holds the training windows in order, then the validation
windows: a matrix [samples, context + 1], so that a sample's number is its row.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...job.data.tokenizer import Bytes, Tokenizer
from ...job.data.tokenizer_folder import load_tokenizer, tokenizer_files
from ...job.model_folder.config import pretrained_config
from ...job.model_folder.positions import longest_of
from ...job.schema import Job
from ...proto.errors import JobError
from ...proto.process.files import whole_file
from ...proto.process.progress import Meter, Tell, silent
from .corpus.corpus import corpus_of, count_held
from .corpus.index import index_texts
from .corpus.kept import Kept
from .corpus.reading import Point
from .corpus.streams import Stream, TokenFiles, tokenised, unread
from .density import Counted
from .files.places import Place
from .files.sources import text_files
from .files.token_files import token_parts

DEFAULT_CONTEXT = 1024
_ROWS = 4096  # rows written at once
_TOKENS = 1 << 22  # tokens read at once


@dataclass(frozen=True)
class TokenFile:
    """A tokenised corpus: ``path`` = FOLDER/``digest`` (sha256), rows of ``context + 1`` little-endian ``dtype``.
    For marked rows (job/data/marks.py) also whether they are ``packed``, and the total number of tokens that train. For
    evaluation sets, the ``validation_samples`` of each."""

    path: Path
    digest: str
    dtype: str
    context: int
    samples: int
    validation_samples: int
    _: KW_ONLY
    packed: bool = False
    trained: int = 0
    mix: tuple[tuple[int, int], ...] = ()
    sets: tuple[int, ...] = ()


def counts_path(tokens: Path) -> Path:
    """The path of the file, beside marked rows, with the number of tokens of each row that train."""
    return tokens.with_name(tokens.name + ".counts")


def model_sizes(job: Job, tokenizer: Tokenizer | None) -> tuple[int, int]:
    """(context, vocabulary) of the model, JobError when they do not fit the tokenizer or each other."""
    context, vocabulary = job.model.context, job.model.vocabulary
    if job.model.pretrained:
        config = pretrained_config(job.model.pretrained)
        limit = longest_of(config)
        vocabulary = config.get("vocab_size")
        context = context or min(limit or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
        if limit and context > limit:
            raise JobError(f"model.context = {context} is more than the {limit} positions of {job.model.pretrained}")
    known = tokenizer.vocabulary if tokenizer else 0
    if vocabulary is None:
        vocabulary = known
    if job.model.pretrained and job.data.tokenizer == "bytes" and known:
        _check_bytes(Path(job.model.pretrained), vocabulary)
    if vocabulary < known:
        where = "model.pretrained's vocab_size" if job.model.pretrained else "model.vocabulary"
        hint = "use the tokenizer that belongs to the model" if job.model.pretrained else f"write {known} or more"
        raise JobError(f"{where} = {vocabulary} is less than the {known} tokens of data.tokenizer", hint)
    return context or 0, vocabulary


def _check_bytes(folder: Path, vocabulary: int) -> None:
    """JobError where data.tokenizer is "bytes" but the model's tokens are not bytes: neither its tokenizer nor the size
    of its vocabulary is that of bytes."""
    own = load_tokenizer(str(folder)) if tokenizer_files(folder) else None
    if vocabulary == Bytes.vocabulary if own is None else own.prompt(_ANY) == list(_ANY.encode()):
        return
    raise JobError(
        f'data.tokenizer = "bytes", but {folder} has a vocabulary of its own, of {vocabulary} tokens: a byte would be '
        "trained as whatever token has its number",
        f'write tokenizer = "{folder}"' if own else "set data.tokenizer to the folder of the model's tokenizer",
    )


_ANY = "All of a model's own bytes: \u00e9\u4e2d."


def tokenise(
    job: Job, tokenizer: Tokenizer, context: int, folder: Path, tell: Tell = silent, room: int = sys.maxsize
) -> TokenFile:
    """Read the job's text, tokenise it, write FOLDER/<sha256>. For more than ``room`` bytes of tokens write an `Index`
    instead, whose path is in the result. JobError: no text, or too little for one sample.

    Both passes stream: the tokens are first written to a temporary file, never held in memory. A start that is killed
    leaves that file (`Kept`), and the next start continues with it. ``tell`` gets events with the progress, on this
    thread.
    """
    dtype = token_dtype(tokenizer.vocabulary)
    kind, patterns = job.data.source()
    width = np.dtype(dtype).itemsize
    raw = job.data.raw_kind(tokenizer.vocabulary)
    meter = Meter("tokenising", "tokens", tell)
    folder.mkdir(parents=True, exist_ok=True)
    left = room
    with contextlib.ExitStack() as files:

        def copied(names: Sequence[str]) -> tuple[Stream, Path]:
            spool = files.enter_context(tempfile.NamedTemporaryFile(dir=folder, prefix=".tokens-"))
            found = TokenFiles(tuple(token_parts(names, raw)), dtype, tokenizer.vocabulary)
            for start in range(0, found.tokens if found.tokens * width <= left else 0, _TOKENS):
                spool.write(found.read(start, min(_TOKENS, found.tokens - start)).data)
            spool.flush()
            return found, Path(spool.name)

        def read(names: Sequence[str], part: str) -> tuple[Stream, Path]:
            if kind == "tokens":
                return copied(names)
            found, kept = _read_texts(job, names, tokenizer, folder, part, left, meter=meter)
            spools.append(files.enter_context(contextlib.closing(kept)))
            return found, kept.path

        spools: list[Kept] = []
        training, spool = read(patterns, "training")
        left -= training.tokens * width
        validation, held_spool = None, spool
        if job.data.held_out():
            validation, held_spool = read(job.data.held_out(), "validation")
            left -= validation.tokens * width
        corpus = corpus_of(job, training, validation, context)
        if left >= 0:
            if isinstance(job.data.validation, float):
                held, kept = split(corpus.samples + corpus.held, job.data.validation)
            else:
                held, kept = np.arange(corpus.held), np.arange(corpus.samples)
            rows = [_windows(path, dtype, context) for path in (spool, held_spool)]
            path, digest = write_rows(folder, itertools.chain(_rows(rows[0], kept), _rows(rows[1], held)))
            made = TokenFile(path, digest, dtype, context, corpus.samples, corpus.held)
        else:
            index = index_texts(job, corpus, folder, room, tell)
            made = TokenFile(index.path, index.digest, dtype, context, corpus.samples, corpus.held)
        for done in spools:
            done.remove()
    return made


def _read_texts(
    job: Job, names: Sequence[str], tokenizer: Tokenizer, folder: Path, part: str, room: int, *, meter: Meter
) -> tuple[Stream, Kept]:
    """Tokenise the files of these patterns, continuing with the tokens of an earlier start. ``part``: "training" or
    "validation", a part of file names."""
    kind, dtype = job.data.source()[0], token_dtype(tokenizer.vocabulary)
    sources = text_files(kind, names)
    about = {"kind of data": kind, "data.field": job.data.field, "data.tokenizer": tokenizer.identity}
    kept = Kept(folder, part, about, sources, unread(), dtype, room=room, tell=meter.tell)
    with contextlib.ExitStack() as undo:
        undo.callback(kept.close)
        counted = Counted(tokenizer)
        counted.counted = kept.reading.at.counted or counted.counted
        meter.done += kept.reading.at.tokens

        def take(tokens: npt.NDArray[Any]) -> None:
            meter.add(len(tokens))
            kept.write(tokens)

        def reached(number: int, place: Place, tokens: int) -> None:
            kept.note(Point(number, place, tokens, counted.counted), now=number == len(sources))

        sizes = tuple((source.name, source.size) for source in sources)
        name = job.data.tokenizer
        found = tokenised(
            kind,
            sizes,
            job.data.field,
            counted,
            name,
            dtype,
            take=take,
            reading=kept.reading,
            reached=reached,
        )
        counted.report(kind, name, meter.tell)
        undo.pop_all()
    return found, kept


def _windows(spool: Path, dtype: str, context: int) -> npt.NDArray[Any]:
    """The windows of a file of tokens, as a memory-mapped view [windows, context + 1]."""
    tokens = np.memmap(spool, np.dtype(dtype).newbyteorder("<"), mode="r")
    return np.lib.stride_tricks.sliding_window_view(tokens, context + 1)[::context]


def _rows(windows: npt.NDArray[Any], order: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[Any]]:
    return (windows[order[at : at + _ROWS]] for at in range(0, len(order), _ROWS))


def token_dtype(vocabulary: int) -> str:
    """The smallest of uint8, uint16, uint32 that holds every token."""
    return "uint8" if vocabulary <= 2**8 else "uint16" if vocabulary <= 2**16 else "uint32"


def split(windows: int, validation: float) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(validation, training) window numbers, ascending."""
    count = count_held(windows, validation)
    held = (2 * np.arange(count) + 1) * windows // (2 * max(count, 1))
    kept = np.ones(windows, bool)
    kept[held] = False
    return held, np.flatnonzero(kept)


def write_rows(folder: Path, blocks: Iterator[npt.NDArray[Any]]) -> tuple[Path, str]:
    """Write blocks to FOLDER/<sha256 of all bytes>, atomically. Returns (path, digest)."""
    hasher = hashlib.sha256()
    with whole_file(folder, hasher.hexdigest, sync=True) as file:
        for block in blocks:
            raw = np.ascontiguousarray(block, dtype=block.dtype.newbyteorder("<")).tobytes()
            hasher.update(raw)
            file.write(raw)
    return folder / hasher.hexdigest(), hasher.hexdigest()
