"""What is compared of a person's own code between starts and nodes: its source, and the shape of what it makes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ...job.data.own_code import OwnCode
from ...job.schema import Job
from .builds import SequentialModel, import_build
from .definition import ModelDefinition
from .own_optimizer import trial

_LIBRARIES = ("site-packages", "dist-packages")


def own_code(
    job: Job, definition: ModelDefinition | None, samples: Any = None, allow_code: Sequence[str] | None = None
) -> OwnCode | None:
    """The own code of a job; None where it calls none. Its modules are loaded already, except the optimiser's.

    ``samples``: what ``data.build`` gave, ((inputs, targets), (inputs, targets)); None: not compared.
    ``allow_code``: modules whose optimiser may be called (None: any). FarflungError: it is not among them.
    """
    if not job.calls:
        return None
    train, moments = job.train, None
    if ":" in train.optimizer:
        make = import_build(train.optimizer, "train.optimizer", allow_code)
        moments = list(trial(train.optimizer, make, train.learning_rate, train.weight_decay)[0])
    model = ""
    if isinstance(definition, SequentialModel):
        model = sha256(repr(sorted(definition.shapes.items())).encode()).hexdigest()
    sources = {name: source_digest(name) for name in sorted(job.modules) if name in sys.modules}
    return OwnCode(sources=sources, moments=moments, model=model, samples=_content(samples) if samples else "")


def source_digest(name: str) -> str:
    """The sha256 of a loaded module's source and of that of the modules beside it (below the folder of its package, or
    of its file) that it uses; installed libraries are not among them."""
    base = _base(name)
    found: dict[str, str] = {}
    waiting = [name]
    while waiting:
        module = sys.modules.get(one := waiting.pop())
        file = getattr(module, "__file__", None)
        if one in found or not isinstance(module, ModuleType) or file is None:
            continue
        if one != name and not _is_beside(Path(file), base):
            continue
        found[one] = sha256(Path(file).read_bytes()).hexdigest()
        for value in vars(module).values():
            used = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            if isinstance(used, str):
                waiting.append(used)
    return sha256(repr(sorted(found.items())).encode()).hexdigest()


def _base(name: str) -> Path | None:
    """The folder whose modules belong to a module's code; None: it alone does, as one of ours."""
    top = name.partition(".")[0]
    if top == __name__.partition(".")[0]:
        return None
    file = getattr(sys.modules.get(top) or sys.modules[name], "__file__", None)
    folder = Path(file).parent if file else None
    return None if folder is None or folder.name in _LIBRARIES else folder


def _is_beside(file: Path, base: Path | None) -> bool:
    if base is None or not file.is_relative_to(base):
        return False
    return not any(part in _LIBRARIES for part in file.relative_to(base).parts)


def _content(samples: Any) -> str:
    """The sha256 of tensors: shapes, dtypes and values."""
    digest = sha256()
    for part in samples:
        for one in part:
            tensor: Tensor = one.detach().contiguous().cpu()
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
