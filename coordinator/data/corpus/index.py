"""The index of a corpus: where its tokens are, and a digest for each piece of its rows.

If a file changes while a run needs it, the digest of the first piece that is read shows it. A piece of text is
tokenised again each time it is asked for. So the held-out windows, which come from all over the text, are kept beside
the index, and as many of the first pieces as the limit of disk space allows.
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
from pathlib import Path
from typing import Any

import numpy as np

from ....job.schema import Job
from ....proto.errors import JobError
from ....proto.messages.pieces import piece_size
from ....proto.process.files import write_whole
from ....proto.process.progress import Meter, Tell, silent
from ..files.token_files import TokenPart, token_parts
from .corpus import Corpus, corpus_of
from .streams import Stream, Texts, TokenFiles, changed, unchanged

SUFFIX = ".index"


VERSION = 2
"""The version of the index file. An index of another version is made again."""


_MEMORY = 64 << 20  # bytes of recently requested pieces that are kept in memory


class Index:
    """A corpus with the sha256 of all its rows and of each piece. ``path``: FOLDER/<digest>.index; beside it is a file
    of rows that need not be tokenised again. Thread-safe."""

    def __init__(self, corpus: Corpus, digest: str, pieces: Sequence[str], path: Path) -> None:
        self.corpus, self.digest, self.pieces, self.path = corpus, digest, tuple(pieces), path
        self._lock = threading.Lock()
        self._made: OrderedDict[int, Future[bytes]] = OrderedDict()

    def unchanged(self) -> bool:
        """Whether every file exists with its former size. The bytes are checked when they are read."""
        streams = (self.corpus.training, self.corpus.validation)
        return all(unchanged(stream) for stream in streams if stream)

    def read(self, piece: int) -> bytes:
        """The bytes of a piece. SourceChanged where it differs from the start of the run, SourceUnreachable as in
        `Corpus.read`. A piece of texts is tokenised once for all callers that ask for it at the same time or soon
        after."""
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
        except JobError as error:  # these tokens had no error at the start, so the file has changed
            raise changed(self._kind, self.corpus.names(begin, end - begin), error.message) from None
        raise changed(self._kind, self.corpus.names(begin, end - begin), f"piece {piece} has other tokens")

    @property
    def _kind(self) -> str:
        return self.corpus.training.kind

    def _kept(self, offset: int, length: int) -> bytes:
        """Bytes of the rows, from the file beside the index where that has them, else from `Corpus.read`."""
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
        """Write the index to its path atomically."""
        content = {"version": VERSION, "digest": self.digest, "pieces": self.pieces}
        write_whole(self.path, json.dumps(content | {"corpus": dataclasses.asdict(self.corpus)}).encode())

    @staticmethod
    def load(path: Path) -> Index | None:
        """The index that `save` wrote; None if another version of farflung wrote it."""
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
    """Read every file of ``data.tokens`` once, and keep only an index in ``folder``.

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
    """Tokenise a corpus of texts once more; keep an index of it, and up to ``room`` bytes of its rows, in ``folder``.

    JobError: even the windows held out by ``data.validation`` need more than ``room``.
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


def _indexed(corpus: Corpus, rows: Iterable[bytes], folder: Path, meter: Meter, room: int) -> Index:
    """The index of these rows. If the corpus is of texts, the first ``room`` bytes of rows are kept."""
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


def _told_if_empty(parts: Iterator[TokenPart], tell: Tell) -> tuple[TokenPart, ...]:
    """The parts that have tokens; the names of empty ones are passed to ``tell``."""
    found = tuple(parts)
    if empty := ", ".join(part.name for part in found if not part.tokens):
        tell({"event": "notice", "time": time.time(), "message": f"data.tokens: no token in {empty}: left out"})
    return tuple(part for part in found if part.tokens)
