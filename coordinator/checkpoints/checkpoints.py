"""Checkpoints on disk: received in pieces; a checkpoint is complete or does not exist.

    TO/.receiving/step-00000100/    files as they arrive, one for each stage, all of one view
    TO/step-00000100/               complete: the files and manifest.json; it appears by one rename

A view change may interrupt a checkpoint, and the next view may send the same step again, cut into another number of
stages or after another round. So files of different views never make one checkpoint. The newest view's files count
until a checkpoint of the step is complete; that one stays. Unfinished checkpoints are deleted when a later step is
complete, and at a start.

The content of the files is not looked at here; ``manifest.py`` makes the manifest.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...job.data.sampling import Position
from ...proto.control_pb2 import Shard
from ...proto.process.files import sync_folder, write_whole
from ...proto.words.border import below
from .acceptance import Expected
from .arrived import sender_metadata, tensor_names
from .manifest import MANIFEST, damaged, manifest_of, position_in, read_manifest
from .refused import ShardRefused

MAX_FILES = 4096
MOST_OPEN = 4
"""Most unfinished checkpoints that are kept, so that those that never become complete do not fill the disk."""
log = logging.getLogger(__name__)
_FOLDER = re.compile(r"step-([0-9]{8,20})\Z")


@dataclass(frozen=True)
class Complete:
    """A complete checkpoint."""

    step: int
    path: Path
    position: Position


@dataclass
class _Receiving:
    """The files of a step in a view that have arrived. ``meta``: file -> its sender's metadata."""

    view: int
    files: int
    done: dict[str, str] = field(default_factory=dict)
    meta: dict[str, dict[str, Any]] = field(default_factory=dict)
    tensors: dict[str, frozenset[str]] = field(default_factory=dict)
    """File -> the names of its tensors."""


class Checkpoints:
    """The checkpoints of one run in one folder. Methods block on the disk: call them from a thread for big files.

    ``keep``: how many complete checkpoints stay. ``about``: keys that go into every manifest (job, facts, run).
    """

    def __init__(self, folder: Path, keep: int, about: dict[str, Any]) -> None:
        self.folder, self.keep, self._about = folder, keep, about
        self._open: dict[int, _Receiving] = {}
        self._gone_back_to: list[tuple[int, int]] = []
        self._held: set[int] = set()
        self._damaged: set[int] = set()
        """Steps of complete checkpoints that a start passed over: the next checkpoint of the same step replaces
        them."""
        self._listed: list[int] = []
        """The folder's steps when it was read last."""
        self._unread = False
        self._changing = threading.Lock()
        self.arrived = 0
        """Bytes received since the start: it grows while a node uploads."""

    # ---- receiving ---------------------------------------------------------------------------

    @property
    def incoming(self) -> Path:
        """The folder in which files are until they are whole."""
        return self.folder / ".receiving"

    def receiving(self, step: int) -> Path:
        """The folder in which a step's whole files wait until all have arrived."""
        return self.incoming / _name(step)

    def clear_receiving(self) -> None:
        """Delete the unfinished checkpoints of an earlier coordinator: the nodes do not know which files arrived."""
        with self._changing:
            self._open.clear()
            shutil.rmtree(self.incoming, ignore_errors=True)

    def has_whole(self, view: int, step: int, file: str) -> bool:
        """Whether a file of a step's checkpoint in a view is here, so that its sender need not send it."""
        one = self._open.get(step)
        return self.is_past(step) or (one is not None and one.view == view and file in one.done)

    @property
    def open_steps(self) -> tuple[int, ...]:
        """Steps of which some files have arrived, but not all."""
        return tuple(self._open)

    def leave_out(self, given_up: Callable[[tuple[int, int]], str]) -> None:
        """Delete the files of steps that can't become complete. ``given_up``: (view, step) -> why it can't, else ""."""
        with self._changing:
            gone = {step for step, one in self._open.items() if given_up((one.view, step))}
            self._forget(lambda step: step in gone)

    def discard_after(self, step: int, view: int) -> None:
        """``view`` continues after ``step``: files of earlier views for later steps have weights that the run has given
        up, and are deleted."""
        with self._changing:
            self._gone_back_to.append((step, view))
            self._forget(lambda one: one > step)

    def era(self, step: int) -> int:
        """A number that changes when the received files of a step are deleted."""
        return sum(reached < step for reached, _ in self._gone_back_to)

    def keep_file(
        self, path: Path, era: int, digest: str, shard: Shard, wanted: Expected | None = None
    ) -> Complete | None:
        """Put a whole file beside the others of its view. The last file completes the checkpoint.

        A file of an ended view, or of a step whose checkpoint is complete, is not needed and stays at ``path``.
        """
        if not 1 <= shard.files <= MAX_FILES:
            raise ShardRefused(f"a checkpoint can't have {shard.files} files")
        step, meta = shard.step, sender_metadata(shard)
        view = meta.get("view", 0)  # 0: its sender does not say
        if not isinstance(view, int):
            raise ShardRefused(f"{shard.file} is of view {view!r}, which is no number")
        names = frozenset[str]()
        if wanted is not None:
            view, names = wanted.view, tensor_names(path, shard, meta, wanted)
        with self._changing:
            given_up = any(reached < step and 0 < view < number for reached, number in self._gone_back_to)
            if given_up or self.era(step) != era:
                raise ShardRefused(f"step {step} was given up by a view change")
            one = self._open.get(step)
            if self.is_past(step) or (one is not None and view < one.view):
                return None
            if one is None or view > one.view:
                self._forget(lambda other: other == step)
                one = self._open[step] = _Receiving(view, shard.files)
                for waits in sorted(self._open)[1 : 1 - MOST_OPEN]:  # the oldest may be on a slow link
                    self._forget(lambda other, waits=waits: other == waits)  # type: ignore[misc]
            if one.files != shard.files:
                raise ShardRefused(f"step {step} has {one.files} files, not {shard.files}")
            for other, there in one.tensors.items():
                if other != shard.file and there & names:
                    raise ShardRefused(f"{shard.file} and {other} of step {step} both have {min(there & names)!r}")
            self.receiving(step).mkdir(exist_ok=True)
            path.replace(below(self.receiving(step), shard.file))
            one.done[shard.file], one.meta[shard.file], one.tensors[shard.file] = digest, meta, names
            if len(one.done) < one.files:
                return None
            complete = self._complete(step, one)
        self._prune()
        return complete

    def _complete(self, step: int, one: _Receiving) -> Complete:
        folder, target = self.receiving(step), self._target(step)
        manifest = {**manifest_of(one.meta), **self._about, "step": step}
        manifest |= {"files": sorted(one.done), "digests": one.done}
        write_whole(folder / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode(), sync=True)
        sync_folder(folder)
        if target.exists():  # a damaged one
            replaced = self.incoming / f"replaced-{step}"
            shutil.rmtree(replaced, ignore_errors=True)
            target.replace(replaced)
        folder.replace(target)
        self._listed.append(step)
        sync_folder(self.folder)
        self._damaged.discard(step)
        self._forget(lambda other: other <= step)
        return Complete(step, target, position_in(manifest))

    def is_past(self, step: int) -> bool:
        """Whether this step's checkpoint, or a later one, is complete. Where the folder can't be read now, because no
        descriptor is left or the disk fails, what was read last counts: the run asks this at every tick."""
        try:
            self._listed, self._unread = self.steps(), False
        except OSError as error:
            if not self._unread:
                log.warning("the checkpoints can't be listed (%s): what was there before counts", error)
            self._unread = True
        return any(one >= step and one not in self._damaged for one in self._listed)

    def _forget(self, which: Callable[[int], bool]) -> None:
        """Throw away what has arrived of some steps."""
        for step in [one for one in self._open if which(one)]:
            del self._open[step]
        for folder in self.incoming.iterdir() if self.incoming.is_dir() else ():
            found = _FOLDER.match(folder.name)
            if found and which(int(found[1])):
                shutil.rmtree(folder, ignore_errors=True)

    def _prune(self) -> None:
        for step in [one for one in self.steps() if one not in self._damaged][: -self.keep]:
            if step not in self._held:
                shutil.rmtree(self._target(step), ignore_errors=True)
        for replaced in self.incoming.glob("replaced-*"):
            shutil.rmtree(replaced, ignore_errors=True)

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
        """The path of a file of a complete checkpoint; None for a name that its manifest does not list."""
        folder = self.path(step)
        if folder is None or not (name == MANIFEST or name in read_manifest(folder).get("files", [])):
            return None
        return below(folder, name)

    def digest(self, step: int, name: str) -> str | None:
        """The sha256 (hex) that the manifest has for a file."""
        folder = self.path(step)
        found = read_manifest(folder).get("digests", {}).get(name) if folder else None
        return found if isinstance(found, str) else None

    @contextmanager
    def held(self, step: int) -> Iterator[Path]:
        """The folder of a complete checkpoint, which is not deleted while the block runs."""
        with self._changing:
            self._held.add(step)
        try:
            yield self._target(step)
        finally:
            with self._changing:
                self._held.discard(step)
            self._prune()

    def brought(self, step: int) -> None:
        """Tell that a complete checkpoint of this step was put into the folder from outside: it counts from now on."""
        self._damaged.discard(step)
        self._prune()

    def newest(self, known: set[int] | None = None) -> tuple[Complete | None, list[str]]:
        """(the newest checkpoint whose files are all whole, a sentence for each newer one that was passed over).

        Damaged ones are moved aside, to ``damaged-step-N``, where nothing reads or removes them.
        ``known``: the steps whose checkpoints belong to this run's history; None where that is not known.
        """
        passed: list[str] = []
        for step in reversed(self.steps()):
            folder = self._target(step)
            if step in self._damaged:
                continue
            if known is not None and step not in known:
                why = "is not of this run's history any more"
            elif wrong := damaged(folder):
                passed.append(f"the checkpoint of step {step} is damaged ({wrong}); {self.move_aside(step)}")
                continue
            else:
                return Complete(step, folder, position_in(read_manifest(folder))), passed
            self._damaged.add(step)
            passed.append(f"the checkpoint of step {step} {why}; an older one is taken")
        return None, passed

    def wrong_with(self, step: int) -> str:
        """What differs in a checkpoint from what was stored, found by reading all its files; empty where nothing
        does."""
        with self.held(step) as folder:
            return damaged(folder)

    def move_aside(self, step: int) -> str:
        """Rename a damaged checkpoint so that it is no longer used. Returns in words where it is, and which one is
        used."""
        aside = self.folder / f"damaged-{_name(step)}"
        try:
            with self._changing:
                if aside.exists():  # an earlier damaged one of the same step
                    shutil.rmtree(aside)
                self._target(step).replace(aside)
                sync_folder(self.folder)
        except OSError as error:
            self._damaged.add(step)
            return f"it cannot be moved aside ({error.strerror}); an older one is taken"
        return f"it is in {aside} now, for a person to look at or remove; an older one is taken"

    def _target(self, step: int) -> Path:
        return self.folder / _name(step)


def _name(step: int) -> str:
    return f"step-{step:08d}"
