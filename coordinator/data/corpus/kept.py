"""A file with the tokens that a start has read so far, with which the next start continues if this one is interrupted.

A second file records the inputs: the files with their sizes and stamps (a time, an etag), the tokenizer, and some
places in the files with the number of tokens before each. The next start checks both: the tokens must have the recorded
digest, and only the files before the first changed one are used. The rest is read again, with a message.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ....proto.process.files import write_whole
from ....proto.process.progress import Tell
from ..files.sources import Source
from .reading import Point, Reading

VERSION = 1
EVERY_S = 2.0
"""Least seconds between two notes of the progress; noting may take at most a twentieth of the time."""
_BLOCK = 4 << 20


class Kept:
    """The tokens of one reading: FOLDER/.reading-NAME.tokens, and FOLDER/.reading-NAME.json about them.

    ``about``: the other inputs that decide the tokens, name for messages -> value. ``room``: most bytes of tokens; with
    more, no token is kept, only the progress of the reading. Methods raise OSError. For one thread.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        about: dict[str, str],
        sources: Sequence[Source],
        reading: Reading,
        dtype: str,
        *,
        room: int,
        tell: Tell,
    ) -> None:
        self.path, self._about_path = folder / f".reading-{name}.tokens", folder / f".reading-{name}.json"
        self._about, self._sources, self._tell = about, tuple(sources), tell
        self._width = np.dtype(dtype).itemsize
        self._hash: Any = hashlib.sha256()
        self.reading, self.room, self.whole = reading, room, True
        self._reuse()
        self._file: BinaryIO = self.path.open("r+b" if self.path.is_file() else "w+b")
        size = self.reading.at.tokens * self._width if self.whole else 0
        self._file.truncate(size)
        self._file.seek(size)
        self._next = time.monotonic() + EVERY_S

    def write(self, tokens: npt.NDArray[Any]) -> None:
        """Append the next tokens."""
        if self.whole and self._file.tell() + tokens.nbytes > self.room:
            self.whole = False
            self._file.truncate(0)
        if self.whole:
            self._hash.update(tokens.data)
            self._file.write(tokens.data)

    def note(self, point: Point, now: bool = False) -> None:
        """All tokens before this point were written. From time to time, or at once with ``now``, this is recorded on
        the disk."""
        began = time.monotonic()
        self.reading.reached(point)
        if not now and began < self._next:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._save()
        self._next = time.monotonic() + max(EVERY_S, 20 * (time.monotonic() - began))

    def close(self) -> None:
        """Close the files; the noted tokens stay on the disk."""
        self._file.close()

    def remove(self) -> None:
        """Delete the files: the tokens are elsewhere now."""
        self.close()
        self._about_path.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def _save(self) -> None:
        content = {
            "version": VERSION,
            "about": self._about,
            "sources": self._sources,
            "digest": self._hash.hexdigest() if self.whole else None,
            "reading": vars(self.reading),
        }
        save(self._about_path, content)

    def _reuse(self) -> None:
        """Continue with the files of an earlier start, as far as they are still valid."""
        stored = load(self._about_path)
        if stored is None:
            return
        problem, found = self._usable(stored), _reading(stored["reading"])
        size = found.at.tokens * self._width
        same = first_other(_sources(stored["sources"]), self._sources)
        if problem is None and stored["digest"] is None and size <= self.room:
            problem = "there was no room for the tokens"
        if problem is None and same < len(stored["sources"]) and found.at.number >= same:
            other = stored["sources"][same]
            why = _why(Source(*other), self._sources)
            self._say(f"{other[0]} {why} since an earlier start read it: it is read again, and all that follows it")
            found.back_to(same)
        if problem is None and stored["digest"] is not None and not self._checked(stored["digest"], size, found.at):
            problem = "the tokens in the state folder are damaged"
        if problem is not None:
            self._hash = hashlib.sha256()
            self._say(f"what an earlier start had read is read again: {problem}")
            return
        self.reading, self.whole = found, stored["digest"] is not None
        if tokens := found.at.tokens:
            files = "file" if len(self._sources) == 1 else "files"
            where = f"{found.at.number} of {len(self._sources)} {files} whole"
            self._say(f"an earlier start had read {tokens:,} tokens ({where}): it goes on from there")

    def _usable(self, stored: dict[str, Any]) -> str | None:
        """Why nothing of the stored tokens can be used; None where something can."""
        if stored["about"] == self._about:
            return None
        names = (name for name in self._about if stored["about"].get(name) != self._about[name])
        return f"it was of another {', '.join(names)}"

    def _checked(self, digest: str, size: int, at: Point) -> bool:
        """Whether the first ``size`` bytes have this digest. If so, the running hash has taken the bytes up to
        ``at``."""
        hasher, wanted = hashlib.sha256(), at.tokens * self._width
        if not self.path.is_file():
            return False
        with self.path.open("rb") as file:
            for end in (wanted, size):
                while (left := end - file.tell()) and (block := file.read(min(left, _BLOCK))):
                    hasher.update(block)
                if end == wanted:
                    self._hash = hasher.copy()
        return hasher.hexdigest() == digest

    def _say(self, message: str) -> None:
        self._tell({"event": "notice", "time": time.time(), "message": f"training data: {message}"})


def first_other(before: Sequence[Source], now: Sequence[Source]) -> int:
    """The number of leading files that are certainly unchanged. A file of which only the size is known may have
    changed."""
    least = min(len(before), len(now))
    return next((at for at in range(least) if before[at] != now[at] or not before[at].stamp), least)


def _why(source: Source, now: Sequence[Source]) -> str:
    if source in now:
        return "may have other bytes (its place tells no time and no etag)" if not source.stamp else "has another place"
    return "was changed" if source.name in {one.name for one in now} else "is not among the files that are read now"


def save(path: Path, content: dict[str, Any]) -> None:
    """Write JSON atomically."""
    write_whole(path, json.dumps(content).encode(), sync=True)


def load(path: Path) -> dict[str, Any] | None:
    """The content that `save` wrote; None if there is no file, or one of another version."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("version") == VERSION else None


def _sources(stored: list[list[Any]]) -> list[Source]:
    return [Source(*one) for one in stored]


def _reading(stored: dict[str, Any]) -> Reading:
    points = [Point(number, tuple(place), tokens, tuple(sums)) for number, place, tokens, sums in stored["points"]]
    return Reading(stored["every"], [tuple(mark) for mark in stored["marks"]], points, stored["apart"])
