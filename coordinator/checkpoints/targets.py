"""Checkpoints at an fsspec address (s3://, gs://, sftp://, ...): written, listed, read and removed there.

    TO/step-00000100/    its files, then manifest.json: a folder without a readable manifest is no checkpoint

Only the coordinator writes there; nodes have no credentials. Every file's digest is checked when it is read. Methods
block on the network: call them from a thread. Every failure there is raised as TargetAway with the reason in words.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
from fsspec.registry import known_implementations

from ...job.shared import without_secrets
from ...proto.errors import FarflungError, JobError
from ...proto.words.border import below
from .manifest import MANIFEST, damaged

_FILE = re.compile(r"(step-(\d{8,}))/([A-Za-z0-9][A-Za-z0-9_.-]{0,100})\Z")


class TargetAway(FarflungError):
    """The target does not answer, or refuses the request."""


class TargetDamaged(FarflungError):
    """A checkpoint at the target is not what its manifest says."""


def is_remote(to: str) -> bool:
    """Whether ``checkpoint.to`` is an fsspec address rather than a local folder."""
    return "://" in to


class Target:
    """The folder at ``url``. JobError: the kind of address is unknown, its package is missing, or it has no such
    options."""

    def __init__(self, url: str, options: dict[str, Any] | None = None) -> None:
        self.url = without_secrets(url).rstrip("/")  # everybody who may look at the run sees this
        kind = url.partition("://")[0]
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url.rstrip("/"), **(options or {}))
        except ImportError as error:
            module = str(known_implementations.get(kind, {}).get("class", "")).partition(".")[0]
            hint = f"pip install {module}" if module not in ("", "fsspec") else str(error)
            raise JobError(f"{self.url} needs the package {module or kind}, which is not installed", hint) from None
        except ValueError:
            known = ", ".join(f"{name}://" for name in ("s3", "gs", "abfs", "sftp", "hdfs"))
            raise JobError(f"{self.url}: nothing reads {kind}:// addresses", f"a folder, or one of {known}") from None
        except TypeError as error:
            raise JobError(
                f"{self.url}: checkpoint.options do not fit: {error}", "see the options of that file system"
            ) from None
        self._root = str(self._root).rstrip("/")

    def check(self) -> None:
        """TargetAway unless a small file can be written and removed."""
        with self._at("written"):
            self._fs.pipe_file(f"{self._root}/.farflung", b"farflung was here\n")
            self._fs.rm_file(f"{self._root}/.farflung")

    def address(self, step: int) -> str:
        """Where the checkpoint of a step is."""
        return f"{self.url}/{_name(step)}"

    def steps(self) -> list[int]:
        """Steps of the checkpoints there, ascending."""
        return sorted(step for step, files in self._files().items() if MANIFEST in files)

    def manifest(self, step: int) -> dict[str, Any]:
        """The manifest of a step; TargetDamaged when it cannot be understood."""
        with self._at("read"):
            text = self._fs.cat_file(f"{self._root}/{_name(step)}/{MANIFEST}")
        try:
            found: dict[str, Any] = json.loads(text)
            return {**found, "step": int(found["step"]), "files": [str(name) for name in found["files"]]}
        except (ValueError, KeyError, TypeError):
            raise TargetDamaged(f"{self.address(step)}/{MANIFEST} cannot be read") from None

    def upload(self, folder: Path, step: int, check: Callable[[], None] = lambda: None) -> None:
        """Upload a complete checkpoint. It exists from when its manifest is written, last. It replaces one of the same
        step.

        ``check`` is called before each write and may stop the upload by raising an error.
        """
        with self._at("written"):
            there = self._files().get(step, set())
            for name in sorted(there, key=lambda name: name != MANIFEST):  # without it there is no checkpoint
                check()
                self._fs.rm_file(f"{self._root}/{_name(step)}/{name}")
            for name in json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]:
                check()
                self._fs.put_file(str(folder / name), f"{self._root}/{_name(step)}/{name}")
            check()
            self._fs.pipe_file(f"{self._root}/{_name(step)}/{MANIFEST}", (folder / MANIFEST).read_bytes())

    def remove(self, step: int) -> None:
        """Remove the checkpoint of a step, if there is one."""
        with self._at("written"):
            for name in sorted(self._files().get(step, set()), key=lambda name: name != MANIFEST):
                self._fs.rm_file(f"{self._root}/{_name(step)}/{name}")

    def prune(self, keep: int, newest: int) -> None:
        """Remove all checkpoints up to step ``newest`` except the last ``keep``, and older folders without a manifest.

        Checkpoints after ``newest`` are damaged or of a history that was given up: they don't count among the ``keep``.
        """
        files = self._files()
        complete = sorted(step for step, names in files.items() if MANIFEST in names and step <= newest)
        kept = complete[-keep:]
        with self._at("written"):
            for step in [step for step in files if kept and step not in kept and step < kept[-1]]:
                for name in sorted(files[step], key=lambda name: name != MANIFEST):
                    self._fs.rm_file(f"{self._root}/{_name(step)}/{name}")

    def fetch(self, step: int, folder: Path) -> Path:
        """Download a checkpoint to FOLDER/step-... and check it against its manifest. TargetDamaged where it
        differs."""
        manifest = self.manifest(step)
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=folder, prefix=".fetching-"))
        try:
            with self._at("read"):
                for name in [*manifest["files"], MANIFEST]:
                    if not _FILE.match(f"{_name(step)}/{name}"):
                        raise TargetDamaged(f"{self.address(step)} names a file {name[:100]!r}")
                    try:
                        self._fs.get_file(f"{self._root}/{_name(step)}/{name}", str(below(unfinished, name)))
                    except FileNotFoundError:
                        raise TargetDamaged(f"{self.address(step)} lacks {name}") from None
            if wrong := damaged(unfinished):
                raise TargetDamaged(f"{self.address(step)} is damaged: {wrong}")
            shutil.rmtree(folder / _name(step), ignore_errors=True)
            return unfinished.replace(folder / _name(step))
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def _files(self) -> dict[int, set[str]]:
        """Step -> names of the files at the target."""
        found: dict[int, set[str]] = {}
        with self._at("read"), contextlib.suppress(FileNotFoundError):
            self._fs.invalidate_cache()
            for path in self._fs.find(self._root):
                if match := _FILE.search(path):
                    found.setdefault(int(match[2]), set()).add(match[3])
        return found

    @contextlib.contextmanager
    def _at(self, what: str) -> Iterator[None]:
        """Turns errors into TargetAway; every library behind fsspec raises errors of its own, so all are caught."""
        try:
            yield
        except FarflungError:
            raise
        except Exception as error:
            words = (str(error).strip().splitlines() or [""])[0]
            hint = "check the address, the credentials and that the network reaches it"
            raise TargetAway(f"{self.url} cannot be {what}: {type(error).__name__} {words}".rstrip(), hint) from error


@contextlib.contextmanager
def fetched(url: str, step: int | None = None) -> Iterator[Path]:
    """A temporary folder with the checkpoint of a step (by default the newest whole one), which exists while the block
    runs."""
    target = Target(url)
    steps = target.steps()
    wanted = steps[::-1] if step is None else [one for one in steps if one == step]
    if not wanted:
        has = f"it has the steps {', '.join(map(str, steps))}" if steps else "is that where checkpoint.to points?"
        raise FarflungError(f"{url} has no checkpoint{'' if step is None else f' of step {step}'}", has)
    with tempfile.TemporaryDirectory() as folder:
        for one in wanted:
            try:
                yield target.fetch(one, Path(folder))
                return
            except TargetDamaged:
                if one == wanted[-1]:
                    raise


def _name(step: int) -> str:
    return f"step-{step:08d}"
