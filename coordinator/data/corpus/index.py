"""The index of a corpus: where its tokens are, and a digest for each piece of the rows that nodes see.

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
"""Of an index. Another one's is made again."""


_MEMORY = 64 << 20  # bytes of pieces that were asked for, kept for those who ask next


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
        """Bytes of the rows, from the copy beside the index where it has them, else as `Corpus.read`."""
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
        content = {"version": VERSION, "digest": self.digest, "pieces": self.pieces}
        write_whole(self.path, json.dumps(content | {"corpus": dataclasses.asdict(self.corpus)}).encode())

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


def _told_if_empty(parts: Iterator[TokenPart], tell: Tell) -> tuple[TokenPart, ...]:
    """The parts that have tokens; ``tell`` hears the names of the others."""
    found = tuple(parts)
    if empty := ", ".join(part.name for part in found if not part.tokens):
        tell({"event": "notice", "time": time.time(), "message": f"data.tokens: no token in {empty}: left out"})
    return tuple(part for part in found if part.tokens)
