"""Rests: what a node had learnt and not sent yet when a checkpoint was made, kept on its own disk.

A checkpoint has the reference g. Only the node itself has the rest: x - g (with a lossy codec much more than one step's
movement), an explicit error feedback, and a publisher's server errors. The node writes them to its disk: a file for
each checkpoint that the run may go back to, in a thread of the lowest priority, whole or not at all. After a restart of
the whole run it takes them up again (docs/rounds.md), for each parameter whose g has the same bits as when the rest was
kept.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ....scheduler import Plan
from ...device.disk_cache import remove
from ..sections.room import Room, leave
from ..stage_state import StageState, share_of
from .tensor_writer import Written, written

KEPT = 2
"""The newest rests that always stay: a run goes back to the checkpoint before the newest if that one is damaged."""
PENDING = 2
"""Of the checkpoints after the last that is known to be complete, the oldest rests that stay: the coordinator may have
completed them and died before it could say so, and it completes none while it is away."""
REST, FEEDBACK, MOMENT = "rest.", "feedback.", "moment."
"""Prefixes of the tensors' names: x - g plus the server errors, explicit error feedback, the node's own moments."""
_FILE = re.compile(r"^step-(\d{1,18})-view-(\d{1,9})\.safetensors$")
_CHUNK = 1 << 22
_SYNCED = 1 << 28
"""A rest that training waits for goes to the disk in pieces of so many bytes."""


@dataclass(frozen=True)
class Rest:
    """What a node keeps beside one checkpoint. ``tensors``: by prefix + parameter's name, on the CPU, or, where
    ``read`` reads them from the state, their shapes alone."""

    step: int
    view: int
    norm: float
    """The norm of all that is kept, times the node's weight in its groups: what the sum S would lose without it."""
    moved: float
    """The norm of the reference's change since the node has held it; in gradient mode that of its newest gradient."""
    tensors: Mapping[str, Tensor]
    beside: Mapping[str, tuple[str, float]]
    """For each parameter: (digest of g, the node's weight in its section)."""
    optimizer_steps: int = 0
    rooms: tuple[Room, ...] = ()
    """Where tensors lie that are not in this process's own memory."""
    read: Callable[[str], Tensor] | None = None
    """Reads a tensor from the node's state, where memory does not suffice for copies."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(values.nbytes for values in self.tensors.values())

    def values(self, name: str) -> Tensor:
        """One of the tensors."""
        return self.tensors[name] if self.read is None else self.read(name)


class Rests:
    """The files of one node of one run, in a folder of their own. Not thread safe."""

    def __init__(
        self, folder: Path, run: str, limit: int = 0, tell: Callable[[str], None] = lambda message: None
    ) -> None:
        """``limit``: bytes that the owner allows on the disk, 0: no limit. ``tell(message)``: tells the person
        there."""
        self.folder, self.run = folder, run
        self._limit, self._tell = limit, tell
        self._told: set[str] = set()
        self._writing: threading.Thread | None = None
        self._problem = ""
        self.complete = (0, 0)
        """(view, step) of the newest checkpoint that is known to be complete."""

    def held(self) -> list[tuple[int, int]]:
        """(step, view) of each complete rest on the disk, newest first."""
        return [(step, view) for view, step in sorted(self._files(), reverse=True)]

    def keep(self, rest: Rest, pulse: Callable[[], None] = lambda: None) -> None:
        """Write a rest in the background, or, if it has no copies, before this returns: ``pulse()`` is then called from
        time to time. If the one before is still being written, or there is no room, this one is not kept, and the
        person is told."""
        if self._problem:
            self._say(f"what this node learns beside checkpoints cannot be kept in {self.folder}: {self._problem}")
            self._problem = ""
        if self._writing is not None and self._writing.is_alive():
            self._say("this disk takes longer to keep what is learnt beside a checkpoint than the next checkpoint does")
            return
        size = f"{rest.nbytes / 1e9:.3g} GB"
        if self._limit and (KEPT + 1) * rest.nbytes > self._limit:
            self._say(f"{size} beside each checkpoint are more than --max-disk has room for: not kept")
            return
        if rest.read is not None:
            self._say(f"training waits while {size} are kept beside each checkpoint: no memory for a copy")
            self._write(rest, pulse)
            return
        self._writing = threading.Thread(target=self._write_slowly, args=(rest,), name="rests", daemon=True)
        self._writing.start()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the rest that is being written is complete, at most ``seconds``."""
        if self._writing is not None:
            self._writing.join(seconds)

    def read(self, step: int, view: int) -> Rest | None:
        """The rest of a checkpoint; None if it is missing, damaged, or of another run."""
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
        return rest if told["run"] == self.run and told["content"] == _content(tensors, tensors.__getitem__) else None

    def forget_after(self, step: int) -> None:
        """The run goes back to a checkpoint: remove the rests of later steps, whose weights no longer exist."""
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

    def _write_slowly(self, rest: Rest) -> None:
        with contextlib.suppress(OSError, AttributeError):  # sets the priority of this thread alone; only on Linux
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        self._write(rest)

    def _write(self, rest: Rest, pulse: Callable[[], None] = lambda: None) -> None:
        partial = self.folder / "partial"
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with partial.open("wb") as file:
                layout = self._layout(rest, pulse)
                file.write(layout.header)
                unsynced = 0
                for name in layout.offsets:  # piece by piece, so that no second copy is in memory
                    values = rest.values(name)
                    data = _bytes(values)
                    for start in range(0, len(data), _CHUNK):
                        pulse()
                        unsynced += file.write(data[start : start + _CHUNK])
                        if rest.read is not None and unsynced >= _SYNCED:  # else the last wait would be for all of it
                            file.flush()
                            os.fsync(file.fileno())
                            unsynced = 0
                    leave(values)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._path(rest.step, rest.view))
            here = set(self._files())
            for view, step in here - staying(here, self.complete, self._most(rest)):
                remove(self._path(step, view))
        except OSError as error:
            self._problem = error.strerror or str(error)
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)

    def _most(self, rest: Rest) -> int | None:
        """How many rests of this size may stay beside the next while it is written; None: the owner sets no limit."""
        return max(KEPT, self._limit // rest.nbytes - 1) if self._limit and rest.nbytes else None

    def _layout(self, rest: Rest, pulse: Callable[[], None]) -> Written:
        told = {
            "run": self.run,
            "norms": [rest.norm, rest.moved],
            "optimizer_steps": rest.optimizer_steps,
            "beside": dict(rest.beside),
            "content": _content(rest.tensors, rest.values, pulse),
        }
        return written(rest.tensors, {"rest": json.dumps(told)})


def staying(held: Set[tuple[int, int]], complete: tuple[int, int], most: int | None = None) -> set[tuple[int, int]]:
    """The rests to keep of those held, as (view, step). ``complete``: the newest checkpoint that is known to be
    complete. ``most``: so many of them have room, what matters most first; None: all."""
    pending, newest = sorted(one for one in held if one > complete), sorted(held, reverse=True)
    wanted = dict.fromkeys([complete, *newest[:1], *pending[:PENDING], *newest[1:KEPT]])
    return set([one for one in wanted if one in held][:most])


def contribute(rest: Rest, state: StageState, plan: Plan, me: str) -> float:
    """Take up a rest for each parameter whose g has the same bits: x := g + rest, with the weight that the node had
    then, so that the sum S is the same. Returns the norm of the parts that cannot be used here (parameters that the
    node does not hold, other bits of g)."""
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
        for name, x in section.layout.views(section.x):
            if name in known and REST + name in rest.tensors:
                x.add_((rest.tensors[REST + name] * (rest.beside[name][1] / share)).to(x.device))
        for name, here in section.layout.slices():
            if name in known and FEEDBACK + name in rest.tensors:
                scale = 1.0 if state.gradient else rest.beside[name][1] / share
                with section.feeding(here) as fed:
                    fed.add_((rest.tensors[FEEDBACK + name] * scale).to(fed.device).view(-1))
        for kind, vector in section.moments.items():
            for name, values in section.of_moments.views(vector):
                if name in known and f"{MOMENT}{kind}.{name}" in rest.tensors:
                    values.copy_(rest.tensors[f"{MOMENT}{kind}.{name}"])
        section.leave()
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


def _content(names: Iterable[str], values: Callable[[str], Tensor], pulse: Callable[[], None] = lambda: None) -> str:
    digest = xxhash.xxh3_64()
    for name in sorted(names):
        pulse()
        digest.update(name.encode())
        one = values(name)
        digest.update(_bytes(one))
        leave(one)
    return f"{digest.intdigest():016x}"


def _bytes(values: Tensor) -> memoryview:
    return values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data.cast("B")
