"""Training data as they lie, in files of tokens or of text: read where nodes ask, never copied to the coordinator.

What is kept is an index: where the tokens are, and a digest for each piece of the rows that nodes see, which are those
of `data.tokenise`: windows of ``context + 1`` tokens, the training samples first. A file that is changed while a run
needs it is found out by the first piece of it that is read.

A piece of text is tokenised again when it is asked for. So beside the index lie the held-out windows, of which a piece
comes from all over the text, and as many of the first pieces as the disk may take.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ...job.schema import Job
from ...proto.errors import JobError
from ...proto.pieces import piece_size
from ...proto.progress import Meter, Tell, silent
from .documents import TokenPart, token_parts
from .streams import Stream, Texts, TokenFiles, changed, unchanged

SUFFIX = ".index"
VERSION = 2
"""Of an index. Another one's is made again."""
_SPAN = 16 << 20  # bytes between the first and the last window that one read brings
_MEMORY = 64 << 20  # bytes of pieces that were asked for, kept for those who ask next


@dataclass(frozen=True)
class Corpus:
    """The rows of a run's tokens: ``samples`` of training, then ``held`` of validation.

    ``training`` are the training files' tokens; ``validation`` those of held-out files, or None where ``held`` windows
    of ``training`` are held out, evenly spread.
    """

    training: Stream
    validation: Stream | None
    context: int
    samples: int
    held: int

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        return (self.samples + self.held) * self.row

    @property
    def row(self) -> int:
        """Bytes of a row."""
        return (self.context + 1) * np.dtype(self.training.dtype).itemsize

    @property
    def spread(self) -> int:
        """How many windows of ``training`` are held out."""
        return 0 if self.validation else self.held

    def read(self, offset: int, length: int) -> bytes:
        """Bytes [offset, offset + length) of the rows. SourceChanged: a file is gone or shorter than it was.
        SourceUnreachable: its place does not answer."""
        first, last = offset // self.row, -(-(offset + length) // self.row)
        blocks = []
        for stream, windows in self._windows(first, last):
            for group in _groups(windows, self._span(stream)):
                start = group[0] * self.context
                tokens = stream.read(start, (group[-1] - group[0] + 1) * self.context + 1)
                rows = np.lib.stride_tricks.sliding_window_view(tokens, self.context + 1)[:: self.context]
                blocks.append(rows[np.array(group) - group[0]].tobytes())
        begin = offset - first * self.row
        return b"".join(blocks)[begin : begin + length]

    def _span(self, stream: Stream) -> int:
        return _SPAN // (self.context * np.dtype(stream.dtype).itemsize)

    def _windows(self, first: int, last: int) -> Iterator[tuple[Stream, list[int]]]:
        """(stream, numbers of windows in it, ascending) of the rows [first, last)."""
        kept = range(first, min(last, self.samples))
        held = range(max(first, self.samples) - self.samples, last - self.samples)
        spread = self.spread
        if kept:
            yield self.training, [kept_window(row, self.samples + spread, spread) for row in kept]
        if held and self.validation:
            yield self.validation, list(held)
        elif held:
            yield self.training, [held_window(row, self.samples + spread, spread) for row in held]

    def in_order(self, held: BinaryIO) -> Iterator[bytes]:
        """All rows of texts, read once from the first token to the last; those that are held out of ``training`` wait
        in ``held`` for the end."""
        texts = [stream for stream in (self.training, self.validation) if isinstance(stream, Texts)]
        row, spread = 0, self.spread
        for stream in texts:
            number = 0
            for windows in _cut(stream.stream(0), self.context):
                kept = np.ones(len(windows), bool)
                while row < spread and (at := held_window(row, self.samples + spread, spread) - number) < len(windows):
                    kept[at] = False
                    row += 1
                held.write(windows[~kept].tobytes())
                yield windows[kept].tobytes()
                number += len(windows)
        held.seek(0)
        while block := held.read(_SPAN):
            yield block

    def names(self, offset: int, length: int) -> str:
        """The files that these bytes of the rows come from."""
        rows = self._windows(offset // self.row, -(-(offset + length) // self.row))
        return ", ".join(
            stream.names(min(windows) * self.context, (max(windows) - min(windows) + 1) * self.context + 1)
            for stream, windows in rows
        )


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


class Index:
    """A corpus, and the sha256 of all its rows and of each piece of them. ``path``: where it is, FOLDER/<digest>.index;
    beside it lie rows that need not be made again. Threads may share it."""

    def __init__(self, corpus: Corpus, digest: str, pieces: Sequence[str], path: Path) -> None:
        self.corpus, self.digest, self.pieces, self.path = corpus, digest, tuple(pieces), path
        self._lock = threading.Lock()
        self._made: OrderedDict[int, Future[bytes]] = OrderedDict()

    def unchanged(self) -> bool:
        """Whether every file is there and has the size that it had. The bytes are checked when they are read."""
        streams = (self.corpus.training, self.corpus.validation)
        return all(unchanged(stream) for stream in streams if stream)

    def read(self, piece: int) -> bytes:
        """A piece. SourceChanged when it is not what it was when the run began, SourceUnreachable as `Corpus.read`.
        Those who ask for a piece of texts at the same time, or soon after, get what was made once."""
        if isinstance(self.corpus.training, TokenFiles):
            return self._read(piece)
        with self._lock:
            found = self._made.get(piece)
            mine = found or Future()
            self._made[piece] = mine
            self._made.move_to_end(piece)
            while len(self._made) > max(1, _MEMORY // piece_size(self.corpus.size)):
                self._made.popitem(last=False)
        if not found:
            try:
                mine.set_result(self._read(piece))
            except BaseException as error:
                with self._lock:
                    self._made.pop(piece, None)
                mine.set_exception(error)
        return mine.result()

    def _read(self, piece: int) -> bytes:
        size = piece_size(self.corpus.size)
        begin, end = piece * size, min((piece + 1) * size, self.corpus.size)
        try:
            for read in (self._kept, self.corpus.read):
                data = read(begin, end - begin)
                if hashlib.sha256(data).hexdigest() == self.pieces[piece]:
                    return data
        except JobError as error:  # at the start these tokens were good
            raise changed(self._kind, self.corpus.names(begin, end - begin), error.message) from None
        raise changed(self._kind, self.corpus.names(begin, end - begin), f"piece {piece} has other tokens")

    @property
    def _kind(self) -> str:
        return self.corpus.training.kind

    def _kept(self, offset: int, length: int) -> bytes:
        """What of these bytes of the rows lies beside the index; where that is not all, the rest as `Corpus.read`."""
        edge = self.corpus.samples * self.corpus.row
        if offset < edge < offset + length:
            return self._kept(offset, edge - offset) + self._kept(edge, offset + length - edge)
        name, at = (".held", offset - edge) if offset >= edge else (".first", offset)
        try:
            with self.path.with_suffix(name).open("rb") as file:
                file.seek(at)
                if len(data := file.read(length)) == length:
                    return data
        except FileNotFoundError:
            pass
        return self.corpus.read(offset, length)

    def save(self) -> None:
        """Write it to its path, whole or not there."""
        unfinished = self.path.with_suffix(".unfinished")
        content = {"version": VERSION, "digest": self.digest, "pieces": self.pieces}
        unfinished.write_text(json.dumps(content | {"corpus": dataclasses.asdict(self.corpus)}), encoding="utf-8")
        unfinished.replace(self.path)

    @staticmethod
    def load(path: Path) -> Index | None:
        """What `save` wrote; None if another version of farflung did."""
        found = json.loads(path.read_text(encoding="utf-8"))
        if found.get("version") != VERSION:
            return None
        corpus = found["corpus"]
        for name in ("training", "validation"):
            corpus[name] = corpus[name] and _stream(corpus[name])
        return Index(Corpus(**corpus), found["digest"], found["pieces"], path)


def _stream(stored: dict[str, Any]) -> Stream:
    if stored["kind"] == "tokens":
        return TokenFiles(**{**stored, "files": tuple(TokenPart(**part) for part in stored["files"])})
    tuples = {name: tuple(map(tuple, stored[name])) for name in ("sizes", "marks")}
    return Texts(**{**stored, **tuples})


def index_tokens(job: Job, vocabulary: int, dtype: str, context: int, folder: Path, tell: Tell = silent) -> Index:
    """Read every file of ``data.tokens`` once, keep nothing of it but an index in ``folder``.

    JobError: no file, too few tokens for a sample, a token that the tokenizer does not have.
    """
    _, patterns = job.data.source()
    raw = job.data.raw_kind(vocabulary)
    training = TokenFiles(_told_if_empty(token_parts(patterns, raw), tell), dtype, vocabulary)
    held_out = job.data.held_out()
    validation = TokenFiles(_told_if_empty(token_parts(held_out, raw), tell), dtype, vocabulary) if held_out else None
    corpus = corpus_of(job, training, validation, context)
    size = piece_size(corpus.size)
    blocks = (corpus.read(offset, min(size, corpus.size - offset)) for offset in range(0, corpus.size, size))
    return _indexed(corpus, blocks, folder, Meter("reading", "tokens", tell), 0)


def index_texts(job: Job, corpus: Corpus, folder: Path, room: int, tell: Tell = silent) -> Index:
    """Tokenise all of a corpus of texts again, keep an index of it in ``folder``, and up to ``room`` bytes of rows.

    JobError: not even the windows held out by ``data.validation`` fit there.
    """
    held = corpus.spread * corpus.row
    if held > room:
        raise JobError(
            f"data.validation = {job.data.validation} holds out {held / 1e9:.3g} GB of tokens, more than the "
            f"{room / 1e9:.3g} GB that the coordinator may keep",
            "lower it, name files of their own as validation, raise data.cache_gb, or make room",
        )
    meter = Meter("tokenising again", "tokens", tell, of=corpus.size // np.dtype(corpus.training.dtype).itemsize)
    with (folder / ".held").open("w+b") as file:
        return _indexed(corpus, corpus.in_order(file), folder, meter, room - held)


def corpus_of(job: Job, training: Stream, validation: Stream | None, context: int) -> Corpus:
    """The rows of these streams, whose patterns are the job's. JobError: too few tokens for a training sample."""
    kind, patterns = job.data.source()
    windows = count_windows(training.tokens, context, kind, ", ".join(patterns))
    if validation:
        held = count_windows(validation.tokens, context, kind, ", ".join(job.data.held_out()))
        return Corpus(training, validation, context, windows, held)
    assert isinstance(job.data.validation, float)
    held = count_held(windows, job.data.validation)
    if held == windows:
        raise JobError(f"data.validation = {job.data.validation} leaves no training sample of {windows}", "lower it")
    return Corpus(training, None, context, windows - held, held)


def count_windows(tokens: int, context: int, kind: str, names: str) -> int:
    """How many windows so many tokens have. JobError: none."""
    if tokens == 0:
        raise JobError(f"the text is empty: {names}", f"data.{kind} must name files with text in them")
    if tokens <= context:
        need = f"one sample of model.context = {context} needs {context + 1}"
        raise JobError(f"the text is too short: {tokens} tokens in {names}; {need}", "add text or lower the context")
    return (tokens - 1) // context


def count_held(windows: int, validation: float) -> int:
    """How many windows are held out: at least one if any is wanted and two exist."""
    return max(round(windows * validation), int(validation > 0 and windows > 1))


def _indexed(corpus: Corpus, rows: Iterable[bytes], folder: Path, meter: Meter, room: int) -> Index:
    """The index of these rows, of which the first ``room`` bytes are kept where they are texts."""
    folder.mkdir(parents=True, exist_ok=True)
    size, whole, pieces = piece_size(corpus.size), hashlib.sha256(), [hashlib.sha256()]
    filled = 0
    with (folder / ".first").open("wb") as first:
        for block in rows:
            whole.update(block)
            first.write(block[: max(room - first.tell(), 0)])
            rest = memoryview(block)
            while rest:
                if filled == size:
                    pieces.append(hashlib.sha256())
                    filled = 0
                part, rest = rest[: size - filled], rest[size - filled :]
                pieces[-1].update(part)
                filled += len(part)
            meter.add(len(block) // np.dtype(corpus.training.dtype).itemsize)
    path = folder / f"{whole.hexdigest()}{SUFFIX}"
    for name in (".first", ".held"):
        if (folder / name).is_file() and (folder / name).stat().st_size:
            (folder / name).replace(path.with_suffix(name))
        (folder / name).unlink(missing_ok=True)
    index = Index(corpus, whole.hexdigest(), [piece.hexdigest() for piece in pieces], path)
    index.save()
    return index


def _cut(stream: Iterable[npt.NDArray[Any]], context: int) -> Iterator[npt.NDArray[Any]]:
    """The windows of a stream, in order: arrays [some, context + 1]."""
    waiting: list[npt.NDArray[Any]] = []
    count = 0
    for tokens in stream:
        waiting.append(tokens)
        count += len(tokens)
        if count > max(context, 1 << 16):
            joined = np.concatenate(waiting)
            windows = np.lib.stride_tricks.sliding_window_view(joined, context + 1)[::context]
            yield windows
            waiting = [joined[len(windows) * context :]]
            count = len(waiting[0])
    if count > context:
        yield np.lib.stride_tricks.sliding_window_view(np.concatenate(waiting), context + 1)[::context]


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
