"""Token windows of a corpus that this node does not keep whole: it fetches pieces when needed and caches some."""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from ...job.data.facts import Facts
from ...proto.errors import FarflungError
from ...proto.messages.pieces import piece_size
from ...proto.words.border import below
from ..device.disk_cache import Held
from .dataset import TOKENS, TokenRows, dtype_of, tokens_size

FetchLater = Callable[[str, int, int], Callable[[], bytes]]
"""``fetch_later(name, offset, length)`` asks for ``length`` bytes of an artifact from ``offset`` and returns a function
that waits for them and returns them (`Wire.fetch_later`)."""

LEAST = 16
"""Pieces that are kept on the disk even beyond ``limit``: with fewer, a batch would fetch the same piece again."""
_AHEAD = 256  # at most so many pieces are being fetched, or wait in memory to be used
_STALE = 1000  # after so many calls of `ahead`, a fetched piece that nobody used is moved from memory to the disk
_SUM = 8  # bytes of the checksum before a piece's own


class StreamedTokens(TokenRows):
    """The artifact "data/tokens" in pieces; the most recently used ones are kept below ``folder``, in ``limit`` bytes.

    The folder belongs to one process at a time; a later process uses the pieces that it finds there. A piece that the
    disk could not store is fetched again when it is needed again; ``warn`` is called at the first such piece.
    """

    apart = False
    """Pieces come by the trainer's own messages."""

    def __init__(
        self, facts: Facts, fetch_later: FetchLater, folder: Path, limit: int, warn: Callable[[str], None]
    ) -> None:
        dtype = dtype_of(facts)
        super().__init__(facts, lambda name, offset=0, length=None: fetch_later(name, offset, length)())
        self._dtype, self._row = dtype, (facts.context + 1) * dtype.itemsize
        self._size = tokens_size(facts)
        self._piece = piece_size(self._size)
        self._room = max(LEAST, limit // (self._piece + _SUM))
        self._fetch_later, self._warn, self._warned = fetch_later, warn, False
        self._coming: dict[int, tuple[int, Callable[[], bytes]]] = {}  # piece -> (when it was asked, in calls; wait)
        self._calls = 0
        self._folder, self._stem = folder, below(folder, facts.tokens_digest[:16]).name
        self._kept: OrderedDict[int, None] = OrderedDict()  # least recently used first
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._held = Held(folder)
            self._find()
        except OSError as error:
            raise FarflungError(
                f"cannot keep pieces of the training data in {folder}: {error.strerror or error}",
                hint="join with --cache FOLDER, a folder on a disk that this node may write to",
            ) from None

    def _find(self) -> None:
        """Take over the pieces that an earlier process left in the folder; remove all other files."""
        for path in sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime):
            digest, _, number = path.name.partition("-")
            if digest == self._stem and number.isdecimal():
                self._kept[int(number)] = None
            else:  # a piece of other tokens, or an incomplete one
                path.unlink()
        self._make_room()

    def ahead(self, ids: Sequence[int]) -> None:
        self._calls += 1
        stale = [piece for piece, (asked, _) in self._coming.items() if asked < self._calls - _STALE]
        for piece in stale:  # fetched for a step that a view change cancelled: move it from memory to the disk
            self._bytes(piece)
        pieces = dict.fromkeys(piece for sample in ids for piece in self._pieces(sample))
        for piece in pieces:
            if len(self._coming) >= _AHEAD:
                return
            if piece not in self._kept and piece not in self._coming:
                self._coming[piece] = (self._calls, self._ask(piece))

    def rows(self, ids: Sequence[int]) -> npt.NDArray[Any]:
        self.ahead(ids)
        held: dict[int, bytes] = {}
        rows = np.empty((len(ids), self._row), np.uint8)
        for row, sample in zip(rows, ids, strict=True):
            begin = sample * self._row
            for piece in self._pieces(sample):
                if piece not in held:
                    held[piece] = self._bytes(piece)
                at = piece * self._piece
                part = held[piece][max(begin - at, 0) : begin - at + self._row]
                into = max(at - begin, 0)
                row[into : into + len(part)] = np.frombuffer(part, np.uint8)
        return rows.view(self._dtype)

    def _pieces(self, sample: int) -> range:
        begin = sample * self._row
        return range(begin // self._piece, (begin + self._row - 1) // self._piece + 1)

    def _ask(self, piece: int) -> Callable[[], bytes]:
        begin = piece * self._piece
        return self._fetch_later(TOKENS, begin, min(self._piece, self._size - begin))

    def _bytes(self, piece: int) -> bytes:
        """A piece's bytes: from the disk, or fetched."""
        path = self._path(piece)
        if piece in self._kept:
            try:
                kept = path.read_bytes()
            except OSError:  # removed, or the disk fails: the piece is fetched again
                kept = b""
            if xxhash.xxh3_64_digest(kept[_SUM:]) == kept[:_SUM]:
                self._kept.move_to_end(piece)
                with contextlib.suppress(OSError):  # without it, only the order of use is wrong for a later process
                    os.utime(path)
                return kept[_SUM:]
            del self._kept[piece]
        coming = self._coming.pop(piece) if piece in self._coming else (self._calls, self._ask(piece))
        data = coming[1]()
        wanted = min(self._piece, self._size - piece * self._piece)
        if len(data) != wanted:
            raise FarflungError(
                f"piece {piece} of the tokens has {len(data)} bytes, not {wanted}",
                hint="start the coordinator again: its data are damaged",
            )
        self._keep(piece, path, data)
        return data

    def _path(self, piece: int) -> Path:
        return self._folder / f"{self._stem}-{piece}"

    def _keep(self, piece: int, path: Path, data: bytes) -> None:
        unfinished = path.with_suffix(".part")
        try:
            self._make_room(1)
            unfinished.write_bytes(xxhash.xxh3_64_digest(data) + data)
            unfinished.replace(path)
            self._kept[piece] = None
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            if not self._warned:
                self._warned = True
                self._warn(
                    f"cannot keep pieces of the training data in {self._folder}: {error.strerror or error}; what has "
                    "no room there is fetched again whenever it is needed"
                )

    def _make_room(self, more: int = 0) -> None:
        while len(self._kept) > self._room - more:
            oldest = next(iter(self._kept))
            self._path(oldest).unlink(missing_ok=True)
            del self._kept[oldest]
