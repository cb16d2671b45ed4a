"""What is compared of a person's own code between starts and nodes: its source, and the shape of what it makes."""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from hashlib import sha256
from importlib.util import resolve_name
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
_STANDARD = sysconfig.get_path("stdlib")
"""It may lie below a person's folder, as where they have built Python at home."""


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
    of its file) that it uses; installed libraries are not among them. Ends of lines do not count: a checkout on Windows
    has others."""
    base = _base(name)
    found: dict[str, str] = {}
    waiting = [name]
    while waiting:
        module = sys.modules.get(one := waiting.pop())
        file = getattr(module, "__file__", None)
        if one in found or not isinstance(module, ModuleType) or not isinstance(file, str):
            continue
        if one != name and (_is_ours(one) or not _is_beside(Path(file), base)):
            continue
        source = _source(file)
        found[one] = sha256(source).hexdigest()
        waiting += [*_used(module), *_imported(source, module)]
    return sha256(repr(sorted(found.items())).encode()).hexdigest()


def _source(file: str) -> bytes:
    """The source in a file; empty where none can be read, as of a module in a zip file or one made by code."""
    try:
        return Path(file).read_bytes().replace(b"\r\n", b"\n")
    except (OSError, ValueError):
        return b""


def _used(module: ModuleType) -> Iterator[str]:
    """The modules from which a module has its values."""
    for value in list(vars(module).values()):
        try:
            used = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        except Exception:  # a person's object may raise anything when it is asked
            continue
        if isinstance(used, str):
            yield used


def _imported(source: bytes, module: ModuleType) -> Iterator[str]:
    """The modules that a module's source imports when it is loaded: what it takes from them may be numbers, which do
    not say where they are from. Imports in functions are left out: whether they have run yet differs by process."""
    try:
        waiting: list[ast.AST] = [ast.parse(source)]
    except (ValueError, SyntaxError, RecursionError):  # no Python: a compiled extension
        return
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            try:
                here = resolve_name("." * node.level + (node.module or ""), module.__package__)
            except ImportError:
                continue
            yield from (here, *(f"{here}.{one.name}" for one in node.names))
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
            waiting += ast.iter_child_nodes(node)


def _base(name: str) -> Path | None:
    """The folder whose modules belong to a module's code; None: it alone does, as one of ours."""
    if _is_ours(name):
        return None
    package = sys.modules.get(name.partition(".")[0]) or sys.modules[name]
    file = getattr(package, "__file__", None)
    paths = [str(path) for path in getattr(package, "__path__", ())]  # a package without an __init__.py has no file
    folder = Path(file).parent if file else Path(paths[0]) if paths else None
    return None if folder is None or folder.name in _LIBRARIES else folder


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == __name__.partition(".")[0]


def _is_beside(file: Path, base: Path | None) -> bool:
    if base is None or not file.is_relative_to(base) or file.is_relative_to(_STANDARD):
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
