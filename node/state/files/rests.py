"""What a node had learnt beside a checkpoint and not sent yet, kept on its own disk until it can be contributed again.

A checkpoint has the reference g. What is still in x - g (with a lossy codec much more than a step's movement), an
explicit error feedback and a publisher's server errors are nobody's but the node's, so the node writes them beside its
cache: a file for each of the newest two checkpoints, in a thread of the lowest priority, whole or not at all. After a
restart of everything it takes them up again (docs/rounds.md), parameter by parameter, where g has the bits beside which
they were kept.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ....scheduler import Plan
from ...device.disk_cache import remove
from ..stage_state import StageState, share_of
from .tensor_writer import Written, written

KEPT = 2
"""Checkpoints whose rests stay: the newest, which may never be complete at the coordinator, and the newest that is."""
REST, FEEDBACK, MOMENT = "rest.", "feedback.", "moment."
"""Prefixes of the tensors: x - g with the server errors, the explicit error feedback, the node's own moments."""
_FILE = re.compile(r"^step-(\d{1,18})-view-(\d{1,9})\.safetensors$")
_CHUNK = 1 << 22


@dataclass(frozen=True)
class Rest:
    """What a node keeps of one checkpoint. ``tensors``: by prefix and parameter, on the CPU."""

    step: int
    view: int
    norm: float
    """Of everything that is kept, by the node's weight in its groups: what S would lose with it."""
    moved: float
    """The norm that the reference has moved since the node holds it; in gradient mode of its newest gradient."""
    tensors: Mapping[str, Tensor]
    beside: Mapping[str, tuple[str, float]]
    """Of each parameter the digest of g and the node's part of its section."""
    optimizer_steps: int = 0


class Rests:
    """The files of one node of one run, in a folder of their own. Not thread safe."""

    def __init__(
        self, folder: Path, run: str, limit: int = 0, tell: Callable[[str], None] = lambda message: None
    ) -> None:
        """``limit``: bytes that the node's owner allows on the disk, 0 for no limit. ``tell``: the person there."""
        self.folder, self.run = folder, run
        self._limit, self._tell = limit, tell
        self._told: set[str] = set()
        self._writing: threading.Thread | None = None
        self._problem = ""
        self.complete = (0, 0)
        """(view, step) of the newest checkpoint that is known to be complete: its rest stays, though newer ones come
        that the coordinator, who may be away, has not got."""

    def held(self) -> list[tuple[int, int]]:
        """(step, view) of what is here, whole, the newest first."""
        return [(step, view) for view, step in sorted(self._files(), reverse=True)]

    def keep(self, rest: Rest) -> None:
        """Write it in the background. Where the one before is still being written, or there is no room, the node does
        without, and says so."""
        if self._problem:
            self._say(f"what this node learns beside checkpoints cannot be kept in {self.folder}: {self._problem}")
            self._problem = ""
        if self._writing is not None and self._writing.is_alive():
            self._say("this disk takes longer to keep what is learnt beside a checkpoint than the next checkpoint does")
            return
        size = sum(values.nbytes for values in rest.tensors.values())
        if self._limit and (KEPT + 1) * size > self._limit:
            self._say(f"{size / 1e9:.3g} GB beside each checkpoint are more than --max-disk has room for: not kept")
            return
        self._writing = threading.Thread(target=self._write, args=(rest,), name="rests", daemon=True)
        self._writing.start()

    def wait(self, seconds: float | None = None) -> None:
        """Until what is being written is there."""
        if self._writing is not None:
            self._writing.join(seconds)

    def read(self, step: int, view: int) -> Rest | None:
        """What was kept; None where it is not here, or not whole, or of another run."""
        path = self._path(step, view)
        try:
            with safe_open(path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 no mapping
                told = json.loads(file.metadata()["rest"])
            beside = {str(name): (str(digest), float(share)) for name, (digest, share) in told["beside"].items()}
            norm, moved = (float(one) for one in told["norms"])
            rest = Rest(step, view, norm, moved, tensors, beside, int(told["optimizer_steps"]))
        except (OSError, SafetensorError, ValueError, KeyError, TypeError):
            return None
        return rest if told["run"] == self.run and told["content"] == _content(tensors) else None

    def forget_after(self, step: int) -> None:
        """The run goes back to a checkpoint: those of later steps are of weights that are gone."""
        self.wait()
        for view, other in self._files():
            if other > step:
                remove(self._path(other, view))

    def _files(self) -> list[tuple[int, int]]:
        """(view, step) of each file."""
        found = [_FILE.match(path.name) for path in self.folder.iterdir()] if self.folder.is_dir() else []
        return [(int(one[2]), int(one[1])) for one in found if one]

    def _path(self, step: int, view: int) -> Path:
        return self.folder / f"step-{step}-view-{view}.safetensors"

    def _say(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            self._tell(message)

    def _write(self, rest: Rest) -> None:
        with contextlib.suppress(OSError, AttributeError):  # of this thread alone, on Linux
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        partial = self.folder / "partial"
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with partial.open("wb") as file:
                layout = self._layout(rest)
                file.write(layout.header)
                for name in layout.offsets:  # piece by piece: it never lies in memory twice
                    data = _bytes(rest.tensors[name])
                    for start in range(0, len(data), _CHUNK):
                        file.write(data[start : start + _CHUNK])
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._path(rest.step, rest.view))
            here = sorted(self._files(), reverse=True)
            stay = {here[0], self.complete} if self.complete in here[1:] else set(here[:KEPT])
            for view, step in set(here) - stay:
                remove(self._path(step, view))
        except OSError as error:
            self._problem = error.strerror or str(error)
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)

    def _layout(self, rest: Rest) -> Written:
        told = {
            "run": self.run,
            "norms": [rest.norm, rest.moved],
            "optimizer_steps": rest.optimizer_steps,
            "beside": dict(rest.beside),
            "content": _content(rest.tensors),
        }
        return written(rest.tensors, {"rest": json.dumps(told)})


def contribute(rest: Rest, state: StageState, plan: Plan, me: str) -> float:
    """Take up what was kept, where g has the bits beside which it was: x := g + rest, by the weight that the node had,
    so that S is what it was. Returns the norm of what finds no place here (another parameter, other bits)."""
    lost = set(rest.beside)
    for section_name, section in state.sections.items():
        share = share_of(plan, section_name, me)
        section.weight = 0.0 if state.gradient else share
        reference = dict(section.layout.views(section.g))
        known = {
            name
            for name, values in reference.items()
            if name in rest.beside and rest.beside[name][0] == digest_of(values)
        }
        lost -= known
        if any(FEEDBACK + name in rest.tensors for name in known) and section.feedback is None:
            section.feedback = torch.zeros_like(section.g)
        for name, x in section.layout.views(section.x):
            if name in known and REST + name in rest.tensors:
                x.add_((rest.tensors[REST + name] * (rest.beside[name][1] / share)).to(x.device))
        for name, feedback in section.layout.views(section.feedback) if section.feedback is not None else ():
            if name in known and FEEDBACK + name in rest.tensors:
                scale = 1.0 if state.gradient else rest.beside[name][1] / share
                feedback.add_((rest.tensors[FEEDBACK + name] * scale).to(feedback.device))
        for kind, vector in section.moments.items():
            for name, values in section.layout.views(vector):
                if name in known and f"{MOMENT}{kind}.{name}" in rest.tensors:
                    values.copy_(rest.tensors[f"{MOMENT}{kind}.{name}"])
    if not state.gradient and not lost:
        state.optimizer_steps = rest.optimizer_steps
    squares = 0.0
    for name in lost:
        share = 1.0 if state.gradient else rest.beside[name][1]
        whole = sum((rest.tensors[kind + name] for kind in (REST, FEEDBACK) if kind + name in rest.tensors), 0.0)
        squares += float(torch.as_tensor(whole).double().square().sum()) * share**2
    return math.sqrt(squares)


def digest_of(values: Tensor) -> str:
    """A hash of a tensor's bits."""
    return f"{xxhash.xxh3_64_intdigest(_bytes(values)):016x}"


def _content(tensors: Mapping[str, Tensor]) -> str:
    digest = xxhash.xxh3_64()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(_bytes(tensors[name]))
    return f"{digest.intdigest():016x}"


def _bytes(values: Tensor) -> memoryview:
    return values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data.cast("B")
