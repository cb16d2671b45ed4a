"""A node's part of a checkpoint: writing its stage's file, reading the tensors that it needs from any stage's.

A checkpoint is one safetensors file for each stage, at the same round on all of them. Tensors are named by
parameter; the optimiser's moments carry the prefix ``optimizer.NAME.``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Size, Tensor

from ....job.data.sampling import Position
from ....proto.errors import FarflungError
from ....proto.words.loss_scale import is_scale
from ....proto.words.sections import stage_file, stage_of
from ...ipc.pipe import IoEnded
from ...models.weights.fetch import Fetch
from ...models.weights.safetensors_range import Slot, Source
from ..loss_scale import LossScale
from ..sections.room import leave
from ..stage_state import StageState
from .tensor_writer import Room, write


def shard_of(
    state: StageState, stage: int, view: int, step: int, position: Position, room: Room
) -> tuple[str, memoryview, dict[str, Any]]:
    """(file name, bytes, entry in the manifest) of one of a node's stages at the end of a step. ``room(length)`` gives
    the memory for the bytes.

    A tied parameter of two stages is in the first stage's file.
    """
    tensors = tensors_of(state, stage)
    rounds = {name: section.round for name, section in state.sections.items()}
    meta = {
        "view": view,
        "step": step,
        "cursor": position.cursor,
        "redo": list(position.redo),
        "optimizer_steps": state.optimizer_steps,
        "rounds": rounds,
        "fingerprints": {name: f"{section.fingerprint(False):016x}" for name, section in state.sections.items()},
    }
    if state.loss_scale is not None:
        meta["loss_scale"] = [state.loss_scale.scale, state.loss_scale.good, state.loss_scale.dropped]
    return stage_file(stage), write(tensors, room), meta


def tensors_of(state: StageState, stage: int) -> dict[str, Tensor]:
    """The tensors of a stage's file by name, as views of the state."""
    tensors: dict[str, Tensor] = {}
    for section in state.sections.values():
        if stage_of(section.layout.section) != stage:
            continue
        for name, prefix, values in state.tensors_in(section):
            tensors[prefix + name] = values.contiguous()
    return tensors


MANIFEST = "manifest.json"
_SENSELESS = (FarflungError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, OverflowError)


class Unreadable(FarflungError):
    """A file of a checkpoint cannot be used. The node tells the coordinator which file; the coordinator examines it."""

    def __init__(self, step: int, file: str, why: str) -> None:
        super().__init__(f"{file} of checkpoint {step} cannot be used: {why}", "start from an older checkpoint")
        self.step, self.file, self.why = step, file, why


class Checkpoint:
    """A complete checkpoint at the coordinator, read tensor by tensor. Unreadable: a file's content is not valid."""

    def __init__(self, step: int, fetch: Fetch) -> None:
        self.step = step
        self._source = Source(fetch, f"checkpoint/{step}/", f"checkpoint {step}", "start from an older checkpoint")
        with self._reading(MANIFEST):
            self.manifest: dict[str, Any] = json.loads(fetch(f"checkpoint/{step}/{MANIFEST}"))
            files = [str(file) for file in self.manifest["files"]]
            self.optimizer_steps = int(self.manifest.get("optimizer_steps", 0))
            self.loss_scale = loss_scale_of(self.manifest)
        self._slots: dict[str, Slot] = {}
        for file in files:
            if file.endswith(".safetensors"):
                with self._reading(file):
                    self._slots |= self._source.slots(file)

    def read(self, name: str, shape: Size) -> Tensor:
        """The tensor ``name``, fp32 (moments may be bf16), on the CPU. Unreadable: it is missing or of another
        shape."""
        slot = self._slots.get(name)
        with self._reading(slot.file if slot is not None else MANIFEST):
            if slot is None:
                raise ValueError(f"there is no tensor {name}")
            if slot.dtype not in ("F32", "BF16") or slot.shape != tuple(shape):
                raise ValueError(f"tensor {name} is {slot.dtype} {list(slot.shape)}, not F32 or BF16 {list(shape)}")
            return self._source.read(slot, name)

    @contextmanager
    def _reading(self, file: str) -> Iterator[None]:
        """Turn errors in this context into Unreadable for ``file``, except that the I/O process has ended."""
        try:
            yield
        except IoEnded:
            raise
        except _SENSELESS as problem:
            why = problem.message if isinstance(problem, FarflungError) else f"{problem}" or type(problem).__name__
            raise Unreadable(self.step, file, why) from problem

    def has(self, name: str) -> bool:
        return name in self._slots


def load_checkpoint(state: StageState, checkpoint: Checkpoint, names: Iterable[str]) -> None:
    """Fill the reference and the moments of the parameters ``names`` from the checkpoint."""
    wanted = set(names)
    for name, prefix, values in state.tensors():
        if name in wanted and (not prefix or checkpoint.has(prefix + name)):
            values.copy_(checkpoint.read(prefix + name, values.shape))
            leave(values)
    state.optimizer_steps = checkpoint.optimizer_steps if state.moments_travel else 0
    if state.loss_scale is not None and checkpoint.loss_scale is not None:
        state.loss_scale = checkpoint.loss_scale


def loss_scale_of(manifest: dict[str, Any]) -> LossScale | None:
    """The loss scale of a checkpoint of a run in fp16; None for another run. ValueError: it is none."""
    if "loss_scale" not in manifest:
        return None
    scale, good, dropped = manifest["loss_scale"]
    if not is_scale(float(scale)) or min(int(good), int(dropped)) < 0:
        raise ValueError(f"a loss scale of {scale!r}")
    return LossScale(float(scale), int(good), int(dropped))
