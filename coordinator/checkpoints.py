"""Checkpoints on disk: received in pieces, complete or not there at all.

    TO/.receiving/step-00000100/    files as they arrive, one for each stage
    TO/step-00000100/               complete: the files and manifest.json; it appears by one rename

``manifest.json`` has ``step``, ``files``, ``digests`` (sha256, hex), what the nodes said of their files (merged), and
the ``job`` and ``facts``, so that a folder explains itself. Nothing here knows what is inside the files.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ..proto.control_pb2 import Shard
from ..proto.errors import FarflungError
from ..proto.sampling import Position

MANIFEST = "manifest.json"
MAX_FILES = 4096
_FILE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,100}$")
_FOLDER = re.compile(r"^step-(\d{8,})$")
_READ = 1 << 22


class ShardRefused(FarflungError):
    """A shard cannot be taken; the sentence goes to its sender."""


@dataclass(frozen=True)
class Complete:
    """A complete checkpoint."""

    step: int
    path: Path
    position: Position


@dataclass
class _Receiving:
    files: int
    done: dict[str, str] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)


class Receiver:
    """One file on its way in: ``write`` its shards in order, then ``close``, also when the stream broke."""

    def __init__(self, checkpoints: Checkpoints, step: int, file: str) -> None:
        self._checkpoints, self.step, self.file = checkpoints, step, file
        self._era = checkpoints.era(step)
        self._hash = hashlib.sha256()
        self._offset = 0
        self._out: BinaryIO | None = None
        self._path = checkpoints.receiving(step) / f".{file}.{id(self):x}"

    def write(self, shard: Shard) -> Complete | None:
        """Take a piece; with the last one the file is checked and kept. Returns the checkpoint that it completed.

        ShardRefused: out of order, wrong digest, an older era, or the disk does not take it.
        """
        if self._checkpoints.era(self.step) != self._era:
            raise ShardRefused(f"step {self.step} was given up by a view change")
        if (shard.step, shard.file) != (self.step, self.file) or shard.offset != self._offset:
            raise ShardRefused(f"piece at {shard.offset} of {shard.file} came where {self._offset} was due")
        try:
            if self._out is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._out = self._path.open("wb")
            self._out.write(shard.data)
            self._hash.update(shard.data)
            self._offset += len(shard.data)
            if not shard.last:
                return None
            if self._hash.digest() != shard.digest:
                raise ShardRefused(f"{self.file} of step {self.step} arrived with another digest; send it again")
            self._out.flush()
            os.fsync(self._out.fileno())
            self._out.close()
            self._path.replace(self._path.with_name(self.file))
            return self._checkpoints.keep_file(self.step, self.file, self._hash.hexdigest(), shard)
        except OSError as error:
            raise ShardRefused(f"cannot write {self.file} of step {self.step}: {error.strerror or error}") from None

    def close(self) -> None:
        """Forget an unfinished file."""
        if self._out is not None:
            self._out.close()
            self._path.unlink(missing_ok=True)


class Checkpoints:
    """The checkpoints of one run in one folder. Methods block on the disk: call them from a thread for big files.

    ``keep``: how many complete ones stay. ``about``: goes into every manifest (job, facts, run).
    """

    def __init__(self, folder: Path, keep: int, about: dict[str, Any]) -> None:
        self.folder, self._keep, self._about = folder, keep, about
        self._open: dict[int, _Receiving] = {}
        self._gone_back_to: list[int] = []

    # ---- receiving ---------------------------------------------------------------------------

    def receive(self, shard: Shard) -> Receiver | None:
        """Begin with a file's first shard; None when the step is complete already. ShardRefused for a bad name."""
        if not _FILE.match(shard.file) or shard.file == MANIFEST:
            raise ShardRefused(f"{shard.file!r} is no name for a file of a checkpoint")
        if self.path(shard.step) is not None:
            return None
        return Receiver(self, shard.step, shard.file)

    def discard_after(self, step: int) -> None:
        """A view goes on after ``step``: unfinished checkpoints of later steps are of weights that are gone."""
        self._gone_back_to.append(step)
        for open_step in [one for one in self._open if one > step]:
            del self._open[open_step]
        if (self.folder / ".receiving").exists():
            for folder in (self.folder / ".receiving").iterdir():
                found = _FOLDER.match(folder.name)
                if found and int(found[1]) > step:
                    shutil.rmtree(folder, ignore_errors=True)

    def era(self, step: int) -> int:
        """Changes when what was received of a step is given up."""
        return sum(reached < step for reached in self._gone_back_to)

    def receiving(self, step: int) -> Path:
        """Where a step's files arrive."""
        return self.folder / ".receiving" / f"step-{step:08d}"

    def keep_file(self, step: int, file: str, digest: str, shard: Shard) -> Complete | None:
        """A file is whole. With the last one the checkpoint is."""
        if not 1 <= shard.files <= MAX_FILES:
            raise ShardRefused(f"a checkpoint of {shard.files} files is absurd")
        one = self._open.setdefault(step, _Receiving(shard.files))
        if one.files != shard.files:
            raise ShardRefused(f"step {step} has {one.files} files, not {shard.files}")
        one.done[file] = digest
        try:
            _merge(one.meta, json.loads(shard.meta or "{}"))
        except ValueError:
            raise ShardRefused(f"what {file} says of itself is not JSON") from None
        if len(one.done) < one.files:
            return None
        return self._complete(step, one)

    def _complete(self, step: int, one: _Receiving) -> Complete:
        folder, target = self.receiving(step), self._target(step)
        manifest = {**self._about, **one.meta, "step": step, "files": sorted(one.done), "digests": one.done}
        with (folder / MANIFEST).open("w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        for left in folder.iterdir():
            if left.name not in one.done and left.name != MANIFEST:
                left.unlink()
        _sync(folder)
        folder.replace(target)
        _sync(self.folder)
        del self._open[step]
        self._prune()
        return Complete(step, target, _position(manifest))

    def _prune(self) -> None:
        for step in self.steps()[: -self._keep]:
            shutil.rmtree(self._target(step), ignore_errors=True)

    # ---- reading -----------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending."""
        if not self.folder.is_dir():
            return []
        names = (_FOLDER.match(path.name) for path in self.folder.iterdir() if (path / MANIFEST).is_file())
        return sorted(int(name[1]) for name in names if name)

    def path(self, step: int) -> Path | None:
        """The folder of a complete checkpoint."""
        target = self._target(step)
        return target if (target / MANIFEST).is_file() else None

    def file(self, step: int, name: str) -> Path | None:
        """A file of a complete checkpoint; None for anything that its manifest does not list."""
        folder = self.path(step)
        if folder is None or not (name == MANIFEST or name in _manifest(folder).get("files", [])):
            return None
        return folder / name

    def digest(self, step: int, name: str) -> str | None:
        """The sha256 (hex) that the manifest has for a file."""
        folder = self.path(step)
        found = _manifest(folder).get("digests", {}).get(name) if folder else None
        return found if isinstance(found, str) else None

    def newest(self) -> tuple[Complete | None, list[str]]:
        """The newest checkpoint whose every file has its digest, and a sentence for each one passed over."""
        passed: list[str] = []
        for step in reversed(self.steps()):
            folder = self._target(step)
            wrong = damaged(folder)
            if not wrong:
                return Complete(step, folder, _position(_manifest(folder))), passed
            passed.append(f"the checkpoint of step {step} is damaged ({wrong}); an older one is taken")
        return None, passed

    def _target(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"


def damaged(folder: Path) -> str:
    """What is wrong with a complete checkpoint's files, empty when nothing is."""
    try:
        for name, digest in _manifest(folder)["digests"].items():
            if file_digest(folder / name) != digest:
                return f"{name} has another digest"
    except (OSError, ValueError, KeyError, AttributeError) as error:
        return str(error)
    return ""


def file_digest(path: Path) -> str:
    """sha256 (hex) of a file."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_READ):
            hasher.update(block)
    return hasher.hexdigest()


def _manifest(folder: Path) -> dict[str, Any]:
    content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}


def _position(manifest: dict[str, Any]) -> Position:
    redo: Iterable[int] = manifest.get("redo", [])
    return Position(int(manifest["step"]), int(manifest.get("cursor", 0)), tuple(int(one) for one in redo))


def _merge(into: dict[str, Any], more: Any) -> None:
    """Tables are joined key by key, anything else is the last one's."""
    if not isinstance(more, dict):
        raise ValueError("no object")
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            into[key] = {**into[key], **value}
        else:
            into[key] = value


def _sync(folder: Path) -> None:
    """Make renames in a folder last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
