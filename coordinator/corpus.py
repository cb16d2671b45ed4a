"""Files of tokens (``data.tokens``) as they lie: read by range where nodes ask, never copied to the coordinator.

What is kept is an index: the files with their sizes, and a digest for each piece of the rows that nodes see, which are
those of `data.tokenise`: windows of ``context + 1`` tokens, the training samples first. A file that is changed while a
run needs it is found out by the first piece of it that is read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import numpy.typing as npt

from ..proto.errors import FarflungError, JobError
from ..proto.job import Job
from ..proto.pieces import piece_size
from ..proto.progress import Meter, Tell, silent
from .data import count_held, count_windows
from .documents import TokenPart, check_tokens, token_parts

SUFFIX = ".index"
_SPAN = 16 << 20  # bytes between the first and the last window that one read brings


class SourceChanged(FarflungError):
    """A file of tokens is not what it was when the run began."""


class SourceUnreachable(FarflungError):
    """The place of a file of tokens does not answer now; what was asked may be asked again."""


@dataclass(frozen=True)
class Corpus:
    """The rows of a run's token files: ``samples`` of training, then ``held`` of validation.

    ``files`` are the training files; those of ``validation`` the held-out ones, or none where ``held`` windows of
    ``files`` are held out, evenly spread. ``dtype`` is what a row's tokens are given as.
    """

    files: tuple[TokenPart, ...]
    validation: tuple[TokenPart, ...]
    context: int
    dtype: str
    vocabulary: int
    samples: int
    held: int

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        return (self.samples + self.held) * self._row

    @property
    def _row(self) -> int:
        return (self.context + 1) * np.dtype(self.dtype).itemsize

    def read(self, offset: int, length: int) -> bytes:
        """Bytes [offset, offset + length) of the rows. SourceChanged: a file is gone or shorter than it was.
        SourceUnreachable: its place does not answer."""
        first, last = offset // self._row, -(-(offset + length) // self._row)
        blocks = []
        for files, windows in self._windows(first, last):
            for group in _groups(windows, _SPAN // (self.context * np.dtype(self.dtype).itemsize)):
                start = group[0] * self.context
                tokens = self._tokens(files, start, (group[-1] - group[0] + 1) * self.context + 1)
                rows = np.lib.stride_tricks.sliding_window_view(tokens, self.context + 1)[:: self.context]
                blocks.append(rows[np.array(group) - group[0]].tobytes())
        begin = offset - first * self._row
        return b"".join(blocks)[begin : begin + length]

    def _windows(self, first: int, last: int) -> Iterator[tuple[tuple[TokenPart, ...], list[int]]]:
        """(files, numbers of windows in them, ascending) of the rows [first, last)."""
        kept = range(first, min(last, self.samples))
        held = range(max(first, self.samples) - self.samples, last - self.samples)
        spread = 0 if self.validation else self.held
        if kept:
            yield self.files, [kept_window(row, self.samples + spread, spread) for row in kept]
        if held and self.validation:
            yield self.validation, list(held)
        elif held:
            yield self.files, [held_window(row, self.samples + spread, spread) for row in held]

    def _tokens(self, files: Sequence[TokenPart], start: int, count: int) -> npt.NDArray[Any]:
        """Tokens [start, start + count) of the files, one after the other."""
        found = []
        for part, here in _parts(files, start, count):
            dtype = np.dtype(part.dtype)
            begin, end = (part.start + at * dtype.itemsize for at in (here.start, here.stop))
            raw = _range(part, begin, end)
            if len(raw) != end - begin:
                raise _changed(part.name, f"it ends at byte {begin + len(raw)}")
            tokens = np.frombuffer(raw, dtype)
            check_tokens(part.name, tokens, self.vocabulary)
            found.append(tokens.astype(np.dtype(self.dtype).newbyteorder("<")))
        return np.concatenate(found)

    def names(self, offset: int, length: int) -> str:
        """The files that these bytes of the rows come from."""
        rows = self._windows(offset // self._row, -(-(offset + length) // self._row))
        spans = ((files, min(windows) * self.context, max(windows) - min(windows) + 1) for files, windows in rows)
        found = (_parts(files, start, count * self.context + 1) for files, start, count in spans)
        return ", ".join(part.name for parts in found for part, _ in parts)


def _range(part: TokenPart, begin: int, end: int) -> bytes:
    try:
        system, path = fsspec.url_to_fs(part.name)
        try:
            return bytes(system.cat_file(path, begin, end))
        except FileNotFoundError:
            raise
        except Exception:  # some places refuse a range that a file has no more
            system.invalidate_cache()
            if system.size(path) == part.size:
                raise
        raise _changed(part.name, "it has another size")
    except FileNotFoundError:
        raise _changed(part.name, "it is gone") from None
    except SourceChanged:
        raise
    except Exception as error:  # every kind of place has errors of its own
        raise SourceUnreachable(f"data.tokens: cannot read {part.name} now: {error}") from error


def _parts(files: Sequence[TokenPart], start: int, count: int) -> Iterator[tuple[TokenPart, range]]:
    """The files with a part of the tokens [start, start + count) of them all, and which of its own those are."""
    for part in files:
        if here := range(max(start, 0), min(start + count, part.tokens)):
            yield part, here
        start -= part.tokens


def held_window(row: int, windows: int, held: int) -> int:
    """The window of validation row ``row`` where ``held`` of ``windows`` are held out: as `data.split` spreads them."""
    return (2 * row + 1) * windows // (2 * held)


def kept_window(row: int, windows: int, held: int) -> int:
    """The window of training row ``row``: it comes after every held-out one of which ``row`` or fewer kept ones lie
    before."""
    if not held:
        return row
    before = -(-(2 * held * (row + 1) - windows) // (2 * (windows - held)))
    return row + min(max(before, 0), held)


@dataclass(frozen=True)
class Index:
    """A corpus and the sha256 of all its rows and of each piece of them."""

    corpus: Corpus
    digest: str
    pieces: tuple[str, ...]

    def unchanged(self) -> bool:
        """Whether every file is there and has the size that it had. The bytes are checked when they are read."""
        try:
            for part in (*self.corpus.files, *self.corpus.validation):
                system, path = fsspec.url_to_fs(part.name)
                if system.size(path) != part.size:
                    return False
        except FileNotFoundError:
            return False
        return True

    def read(self, piece: int) -> bytes:
        """A piece. SourceChanged when it is not what it was when the run began, SourceUnreachable as `Corpus.read`."""
        size = piece_size(self.corpus.size)
        begin, length = piece * size, min(size, self.corpus.size - piece * size)
        try:
            data = self.corpus.read(begin, length)
        except JobError as error:  # at the start these tokens were good
            raise _changed(self.corpus.names(begin, length), error.message) from None
        if hashlib.sha256(data).hexdigest() != self.pieces[piece]:
            raise _changed(self.corpus.names(begin, length), f"piece {piece} has other tokens")
        return data

    def save(self, folder: Path) -> Path:
        """FOLDER/<digest>.index, whole or not there."""
        path = folder / f"{self.digest}{SUFFIX}"
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")
        return unfinished.replace(path)

    @staticmethod
    def load(path: Path) -> Index:
        """What `save` wrote."""
        found = json.loads(path.read_text(encoding="utf-8"))
        corpus = found["corpus"]
        for name in ("files", "validation"):
            corpus[name] = tuple(TokenPart(**part) for part in corpus[name])
        return Index(Corpus(**corpus), found["digest"], tuple(found["pieces"]))


def index_tokens(job: Job, vocabulary: int, dtype: str, context: int, tell: Tell = silent) -> Index:
    """Read every file of ``data.tokens`` once, keep nothing of it but digests.

    JobError: no file, too few tokens for a sample, a token that the tokenizer does not have.
    """
    _, patterns = job.data.source()
    files = _told_if_empty(token_parts(patterns), tell)
    windows = count_windows(sum(part.tokens for part in files), context, "tokens", ", ".join(patterns))
    validation = _told_if_empty(token_parts(job.data.held_out()), tell)
    if isinstance(job.data.validation, float):
        held = count_held(windows, job.data.validation)
        samples = windows - held
    else:
        names = ", ".join(job.data.held_out())
        held = count_windows(sum(part.tokens for part in validation), context, "tokens", names)
        samples = windows
    if not samples:
        raise JobError(f"data.validation = {job.data.validation} leaves no training sample of {windows}", "lower it")
    corpus = Corpus(files, validation, context, dtype, vocabulary, samples, held)
    meter = Meter("reading", "tokens", tell)
    size, whole, pieces = piece_size(corpus.size), hashlib.sha256(), []
    for offset in range(0, corpus.size, size):
        data = corpus.read(offset, min(size, corpus.size - offset))
        whole.update(data)
        pieces.append(hashlib.sha256(data).hexdigest())
        meter.add(len(data) // np.dtype(dtype).itemsize)
    return Index(corpus, whole.hexdigest(), tuple(pieces))


def _changed(names: str, how: str) -> SourceChanged:
    return SourceChanged(
        f"data.tokens: {names} was changed since the run began: {how}",
        "put the file back as it was, or start another run with another --state",
    )


def _groups(windows: Sequence[int], span: int) -> Iterator[list[int]]:
    """Ascending windows, cut where one read would be of more than ``span`` windows."""
    group: list[int] = []
    for window in windows:
        if group and window - group[0] >= max(span, 1):
            yield group
            group = []
        group.append(window)
    yield group


def _told_if_empty(parts: Iterator[TokenPart], tell: Tell) -> tuple[TokenPart, ...]:
    """The parts that have tokens; ``tell`` hears the names of the others."""
    found = tuple(parts)
    if empty := ", ".join(part.name for part in found if not part.tokens):
        tell({"event": "notice", "time": time.time(), "message": f"data.tokens: no token in {empty}: left out"})
    return tuple(part for part in found if part.tokens)
