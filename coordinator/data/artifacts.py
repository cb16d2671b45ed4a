"""Files that nodes may fetch, by name and range: known names only, described by digests of 4 MiB pieces.
Training data that lie in files of their own (an `Index`) are read there, and every piece is checked before it goes out.

Names: ``data/tokens``, ``model/FILE``, ``tokenizer/FILE``, ``checkpoint/STEP/FILE``. A name is looked up in a table and
never joined to a path.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...proto.control_pb2 import Artifact
from ...proto.errors import FarflungError
from ...proto.messages.pieces import piece_size
from ..checkpoints.checkpoints import Checkpoints
from .corpus.index import SUFFIX, Index
from .corpus.streams import SourceChanged

PIECE = 4 << 20
CHUNK = 1 << 20


class NoArtifact(FarflungError):
    """There is no artifact of that name, or it is shorter than the range."""


ANSWER_S = 5.0
"""Seconds after which a request for a description is answered with the progress, if the description is not ready."""


@dataclass
class _Described:
    """A description that is ready or being made; ``read``: bytes of the file read so far."""

    size: int
    changed: int
    artifact: Artifact | None = None
    read: int = 0
    failed: OSError | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def make(self, name: str, path: Path) -> None:
        """Read the file once, for all callers that wait."""
        try:
            self.artifact = _describe(name, path, self)
        except OSError as error:
            self.failed = error
        finally:
            self.over.set()


class Artifacts:
    """The artifacts of a run. ``files``: name -> path of the files that never change in a run; files of checkpoints are
    found by their names.

    Methods block on the disk: call them from a thread.
    """

    def __init__(self, files: Mapping[str, Path], checkpoints: Checkpoints | None = None) -> None:
        self._files, self._checkpoints = dict(files), checkpoints
        self._described: dict[Path, _Described] = {}
        self._asking = threading.Lock()
        loaded = {path: Index.load(path) for path in self._files.values() if path.suffix == SUFFIX}
        self._indexes = {path: index for path, index in loaded.items() if index}

    def path(self, name: str) -> Path:
        """The path of an artifact. NoArtifact for every unknown name."""
        found = self._files.get(name)
        parts = name.split("/")
        if (
            found is None
            and self._checkpoints
            and len(parts) == 3
            and parts[0] == "checkpoint"
            and parts[1].isdecimal()
            and len(parts[1]) <= 20  # Python refuses to convert thousands of digits to an int
        ):
            found = self._checkpoints.file(int(parts[1]), parts[2])
        if found is None or not found.is_file():
            raise NoArtifact(f"there is no artifact {name[:100]!r}")
        return found

    def describe(self, name: str) -> Artifact:
        """Size, and sha256 of the whole file and of every piece; computed once while the file does not change. Until it
        is ready, the answer has only the progress (``described``), and the caller has to ask again."""
        path = self.path(name)
        if index := self._indexes.get(path):
            return Artifact(
                name=name,
                size=index.corpus.size,
                piece_size=piece_size(index.corpus.size),
                piece_digests=[bytes.fromhex(piece) for piece in index.pieces],
                digest=bytes.fromhex(index.digest),
            )
        state = path.stat()
        with self._asking:
            known = self._described.get(path)
            if known is None or known.failed or (known.size, known.changed) != (state.st_size, state.st_mtime_ns):
                known = self._described[path] = _Described(state.st_size, state.st_mtime_ns)
                threading.Thread(target=known.make, args=(name, path), name=f"describe {name}", daemon=True).start()
        known.over.wait(ANSWER_S)
        if known.failed is not None:
            raise NoArtifact(f"{name} cannot be read: {known.failed.strerror or known.failed}")
        if known.artifact is None:
            return Artifact(name=name, size=known.size, described=max(1, known.read))
        if name.startswith("checkpoint/") and self._checkpoints is not None:
            _, step, file = name.split("/")
            stored = self._checkpoints.digest(int(step), file)
            if stored is not None and stored != known.artifact.digest.hex():
                raise NoArtifact(f"{name} has another digest than when it was stored")
        return known.artifact

    def read(self, name: str, offset: int, length: int) -> Iterator[tuple[int, bytes]]:
        """(offset, bytes) of a range in chunks of 1 MiB; ``length`` 0 means to the end. NoArtifact past the end, and
        where a file of tokens has changed; SourceUnreachable where the storage with the file does not answer now."""
        path = self.path(name)
        index = self._indexes.get(path)
        size = index.corpus.size if index else path.stat().st_size
        end = size if length == 0 else offset + length
        if max(offset, end) > size:
            raise NoArtifact(f"{name} has {size} bytes: bytes {offset} to {end} are not there")
        if index:
            yield from _read(index, offset, end)
            return
        with path.open("rb") as file:
            file.seek(offset)
            while offset < end:
                data = file.read(min(CHUNK, end - offset))
                if not data:
                    raise NoArtifact(f"{name} ends at byte {offset}: the file was changed")
                yield offset, data
                offset += len(data)


def _read(index: Index, offset: int, end: int) -> Iterator[tuple[int, bytes]]:
    size = piece_size(index.corpus.size)
    for piece in range(offset // size, -(-end // size)):
        try:
            data = index.read(piece)
        except SourceChanged as error:
            raise NoArtifact(error.message, error.hint) from None
        data = data[max(0, offset - piece * size) : end - piece * size]
        at = max(offset, piece * size)
        for begin in range(0, len(data), CHUNK):
            yield at + begin, data[begin : begin + CHUNK]


def _describe(name: str, path: Path, told: _Described) -> Artifact:
    whole, pieces, size = hashlib.sha256(), [], 0
    with path.open("rb") as file:
        while block := file.read(PIECE):
            whole.update(block)
            pieces.append(hashlib.sha256(block).digest())
            size += len(block)
            told.read = size
    return Artifact(name=name, size=size, piece_size=PIECE, piece_digests=pieces, digest=whole.digest())
