"""A run's checkpoint folder: find it, open it, and check that it is complete.

It is STATE/checkpoints/step-NNNNNNNN: manifest.json, which has the job and the facts, and safetensors files with fp32
tensors named by parameter (and "optimizer.*", which is not read here).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...job.data.facts import Facts
from ...job.schema import Job
from ...proto.errors import FarflungError
from ...proto.process.files import file_digest
from ..models.definition import ModelDefinition
from ..models.weights.pretrained import PREFIX

OPTIMIZER = "optimizer."
BESIDE = 1e-3
"""Residuals whose norm is below this fraction of the norm of the weights' change since the start are not mentioned."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint folder."""

    folder: Path
    step: int
    job: Job
    facts: Facts


def beside(state: Path, step: int | None = None) -> str:
    """A sentence on how large the residuals were that the nodes held when the checkpoint was made; empty if they were
    below BESIDE. The checkpoint's weights lack them; a run that resumes from the checkpoint has them again."""
    manifest = _manifest(find_checkpoint(Path(state), step).folder / "manifest.json")
    files = [said for said in manifest.get("meta", {}).values() if isinstance(said, dict)]
    norms = [math.hypot(*(float(said.get(key, 0.0)) for said in files)) for key in ("unsent", "moved")]
    if not norms[1] or norms[0] < BESIDE * norms[1]:
        return ""
    return (
        f"this checkpoint is from the middle of the run: its nodes had not sent up to {norms[0] / norms[1]:.1%} of "
        f"what the weights have moved; at a run's end that is less than {BESIDE:.1%}"
    )


def find_checkpoint(state: Path, step: int | None = None) -> Checkpoint:
    """The newest checkpoint, or that of ``step``, in ``state``: a state folder, a folder of checkpoints, or one
    checkpoint."""
    if not state.is_dir():
        raise FarflungError(f"there is no folder {state}", hint="give the run's state folder, such as runs/NAME")
    manifests = [state / "manifest.json"] if (state / "manifest.json").is_file() else []
    manifests += [*state.glob("step-*/manifest.json"), *state.glob("*/step-*/manifest.json")]
    found = {_manifest(path)["step"]: path.parent for path in manifests}
    if not found:
        hint = "the run has not reached its first checkpoint (checkpoint.every), or its checkpoints are elsewhere"
        raise FarflungError(f"{state} has no complete checkpoint", hint=hint)
    wanted = max(found) if step is None else step
    if wanted not in found:
        steps = ", ".join(str(number) for number in sorted(found))
        raise FarflungError(f"{state} has no checkpoint of step {wanted}", hint=f"it has the steps {steps}")
    manifest = _manifest(found[wanted] / "manifest.json")
    try:
        job = Job.model_validate_json(_text(manifest["job"]))
        facts = Facts.model_validate_json(_text(manifest["facts"]))
    except (KeyError, ValueError) as error:
        message = f"{found[wanted] / 'manifest.json'} has no job and facts that this version reads: {error}"
        raise FarflungError(message, hint="export with the version of farflung that wrote it") from error
    return Checkpoint(found[wanted], wanted, job, facts)


Read = Callable[[], Tensor]


def open_tensors(checkpoint: Checkpoint, stack: ExitStack) -> dict[str, Read]:
    """A reader for every tensor of the checkpoint, the optimiser's left out."""
    readers: dict[str, Read] = {}
    for path in sorted(checkpoint.folder.glob("*.safetensors")):
        try:
            file = stack.enter_context(safe_open(path, framework="pt"))
        except SafetensorError as error:
            raise FarflungError(f"{path} is damaged: {error}", hint="use --step with another checkpoint") from error
        for name in file.keys():  # noqa: SIM118 - not a dictionary
            if not name.startswith(OPTIMIZER):
                readers[name] = lambda file=file, name=name: file.get_tensor(name)  # type: ignore[misc]
    return readers


def check_whole(checkpoint: Checkpoint, definition: ModelDefinition, tensors: Mapping[str, Read]) -> None:
    """FarflungError when the checkpoint lacks a tensor of the model."""
    missing = [name for name in definition.shapes if name not in tensors]
    if missing:
        share = f"{len(missing)} of {len(definition.shapes)}"
        raise FarflungError(
            f"{checkpoint.folder} lacks the tensor {missing[0]} ({share} are missing)",
            hint="the checkpoint is damaged: use --step with another one",
        )


def check_base(checkpoint: Checkpoint, source: Path) -> None:
    """FarflungError when the model folder is no longer the one that the adapters were trained beside."""
    for name, digest in checkpoint.facts.artifacts.items():
        path = source / name.removeprefix(PREFIX)
        if not name.startswith(PREFIX) or path.suffix != ".safetensors":
            continue
        if file_digest(path) != digest:
            raise FarflungError(
                f"{path} is not the file that the run's adapters were trained beside", hint="put that folder back"
            )


def _manifest(path: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return {**values, "step": int(values["step"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FarflungError(f"{path} can't be read: {error}", hint="remove that damaged checkpoint") from error


def _text(value: Any) -> str:
    """A job or facts in a manifest: JSON as a text, or as an object."""
    return value if isinstance(value, str) else json.dumps(value)
