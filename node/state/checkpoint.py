"""A node's part of a checkpoint: writing its stage's file, reading the tensors that it needs from any stage's.

A checkpoint is one safetensors file for each stage, at the same round on all of them. Tensors are named by
parameter; the optimiser's moments carry the prefix ``optimizer.NAME.``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from ...job.sampling import Position
from ...proto.errors import FarflungError
from ..models.fetch import Fetch
from ..models.safetensors_range import Slot, Source
from .stage_state import TIED, StageState
from .tensor_writer import Room, write


def shard_of(
    state: StageState, stage: int, view: int, step: int, position: Position, room: Room
) -> tuple[str, memoryview, dict[str, Any]]:
    """(file name, bytes, what the manifest says) of one of a node's stages at the end of a step. ``room``: where the
    bytes are to lie.

    A tied parameter that lies on two stages is in the first stage's file.
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
    return f"stage-{stage}.safetensors", write(tensors, room), meta


def tensors_of(state: StageState, stage: int) -> dict[str, Tensor]:
    """What a stage's file holds, as views of the state."""
    tensors: dict[str, Tensor] = {}
    for section in state.sections.values():
        if section.layout.section not in (f"stage-{stage}", TIED if stage == 0 else ""):
            continue
        for prefix, vector in state.vectors(section).items():
            for name, values in section.layout.views(vector):
                tensors[prefix + name] = values.contiguous()
    return tensors


class Checkpoint:
    """A complete checkpoint at the coordinator, read tensor by tensor."""

    def __init__(self, step: int, fetch: Fetch) -> None:
        self.step = step
        self._source = Source(fetch, f"checkpoint/{step}/", f"checkpoint {step}", "start from an older checkpoint")
        self.manifest: dict[str, Any] = json.loads(fetch(f"checkpoint/{step}/manifest.json"))
        self._slots: dict[str, Slot] = {}
        for file in self.manifest["files"]:
            if str(file).endswith(".safetensors"):
                self._slots |= self._source.slots(str(file))

    def read(self, name: str) -> Tensor:
        """A tensor, fp32 (moments: or bf16) on the CPU."""
        if name not in self._slots:
            raise FarflungError(f"checkpoint {self.step} has no tensor {name}", "start from an older checkpoint")
        slot = self._slots[name]
        if slot.dtype not in ("F32", "BF16"):
            raise FarflungError(f"tensor {name} of checkpoint {self.step} is {slot.dtype}, not F32 or BF16", "")
        return self._source.read(slot, name)

    def has(self, name: str) -> bool:
        return name in self._slots


def load_checkpoint(state: StageState, checkpoint: Checkpoint, names: Iterable[str]) -> None:
    """Fill the reference and the moments of these parameters."""
    wanted = set(names)
    for name, prefix, values in state.tensors():
        if name in wanted and (not prefix or checkpoint.has(prefix + name)):
            values.copy_(checkpoint.read(prefix + name))
    state.optimizer_steps = int(checkpoint.manifest.get("optimizer_steps", 0)) if state.moments_travel else 0
