"""Models and data from a person's own function: ``build = "package.module:function"``.

A model function takes no arguments and returns ``(nn.Sequential, loss)``; ``loss(outputs, targets)`` gives the sum
over the batch's targets. A data function takes no arguments and returns ``(training, validation)``, each a pair of
tensors (inputs, targets) with the samples in the first dimension. Both may also return an object with these
attributes (``model``, ``loss``; ``training``, ``validation``). Every node runs the same function, so it must give the
same data and, apart from the parameters' values, the same model each time.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...job.schema import Job
from ...proto.errors import OWN, FarflungError
from .definition import ModelDefinition
from .dropout import drops
from .stage import SequentialStage

Loss = Callable[[Tensor, Tensor], Tensor]


def import_build(spec: str, where: str, allow_code: Sequence[str] | None) -> Callable[[], Any]:
    """The function that ``spec`` ("package.module:function") names; ``where`` is the job's key, for messages.

    Modules are searched on ``sys.path`` and in the current folder. Raises FarflungError when the module is not in
    ``allow_code`` (None: any), can't be imported, or has no such function.
    """
    module_name, _, function_name = spec.partition(":")
    if allow_code is not None and module_name not in allow_code:
        raise FarflungError(
            f"the job runs code of the module {module_name!r} ({where}), which this node does not allow",
            hint=f"if you trust it, join with --allow-code {module_name}",
        )
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except OWN as error:  # a module may fail in any way while it is imported
        raise FarflungError(
            f"{where}: the module {module_name!r} can't be imported: {type(error).__name__}: {error}",
            hint="start farflung in the folder that has the module, or set PYTHONPATH",
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise FarflungError(
            f"{where}: the module {module_name!r} has no function {function_name!r}", hint="check the name"
        )
    return function  # type: ignore[no-any-return]


def call_build(spec: str, where: str, names: tuple[str, str], allow_code: Sequence[str] | None) -> tuple[Any, Any]:
    """Calls a build function and returns its two values; it may return a pair, or an object with the attributes
    ``names``."""
    function = import_build(spec, where, allow_code)
    try:
        answer = function()
    except OWN as error:
        raise FarflungError(f"{where}: {spec} failed: {type(error).__name__}: {error}", hint="run it alone") from error
    if isinstance(answer, tuple) and len(answer) == 2:
        return answer
    if all(hasattr(answer, name) for name in names):
        return getattr(answer, names[0]), getattr(answer, names[1])
    raise FarflungError(
        f"{where}: {spec} returned {type(answer).__name__}, not ({names[0]}, {names[1]})",
        hint=f"return a tuple ({names[0]}, {names[1]})",
    )


class SequentialModel(ModelDefinition):
    """A user's ``nn.Sequential``, cut between its children; a child without parameters belongs to the layer before it.

    The whole model is made on the CPU, with torch's generator set from the seed, and only the stage's children are
    kept. So the initial values are those that the function itself sets, the same on every node.
    """

    family = "build"

    def __init__(self, make: Callable[[], tuple[nn.Sequential, Loss]], spec: str, seed: int, recompute: bool) -> None:
        self._make, self._spec = make, spec
        model, _ = self._made(seed)
        _check_model(model, spec)
        self._groups = _groups(model)
        names = [
            [f"{child}.{name}" for child in group for name, _ in model.get_submodule(child).named_parameters()]
            for group in self._groups
        ]
        titles = ["+".join(type(model.get_submodule(child)).__name__ for child in group) for group in self._groups]
        super().__init__(
            [f"{group[0]} {title}" for group, title in zip(self._groups, titles, strict=True)], names, recompute
        )
        self.shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        self._seed = seed
        self.drops = drops(model)

    def build(self, first: int, last: int, device: torch.device | str = "cpu") -> SequentialStage:
        model, loss = self._made(self._seed)
        model.float()
        groups = self._groups[first : last + 1]
        layers = [[(name, model.get_submodule(name).to(device)) for name in group] for group in groups]
        return SequentialStage(first, last, len(self.layers), layers, loss, recompute=self._recompute, spec=self._spec)

    def initial(self, name: str, seed: int) -> Tensor:
        if self._values is None or self._values[0] != seed:
            model, _ = self._made(seed)
            self._values = seed, {key: value.detach().float() for key, value in model.named_parameters()}
        return self._values[1][name].clone()

    def _made(self, seed: int) -> tuple[nn.Sequential, Loss]:
        digest = hashlib.sha256(f"build/{seed}".encode()).digest()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int.from_bytes(digest[:8], "little"))
            return self._make()


def sequential_model(job: Job, allow_code: Sequence[str] | None = None) -> SequentialModel:
    """The definition of a job's ``model.build``; FarflungError for anything that can't be trained in parts."""
    spec = str(job.model.build)

    def make() -> tuple[nn.Sequential, Loss]:
        model, loss = call_build(spec, "model.build", ("model", "loss"), allow_code)
        if not isinstance(model, nn.Sequential):
            raise FarflungError(
                f"model.build: {spec} returned {type(model).__name__} as the model, not torch.nn.Sequential",
                hint="put the model's parts into torch.nn.Sequential: it is cut between them",
            )
        if not callable(loss):
            raise FarflungError(f"model.build: {spec} returned no loss function", hint="return (model, loss)")
        return model, loss

    return SequentialModel(make, spec, job.run.seed, job.train.recompute is True)


def build_data(
    job: Job, allow_code: Sequence[str] | None = None
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """((inputs, targets) for training, (inputs, targets) for validation) of a job's ``data.build``, on the CPU."""
    spec = str(job.data.build)
    parts = call_build(spec, "data.build", ("training", "validation"), allow_code)
    for part, name in zip(parts, ("training", "validation"), strict=True):
        tensors = list(part) if isinstance(part, (tuple, list)) else []
        if len(tensors) != 2 or not all(isinstance(tensor, Tensor) for tensor in tensors):
            raise FarflungError(
                f"data.build: the {name} data of {spec} is no pair of tensors", hint="(inputs, targets)"
            )
        if len(tensors[0]) != len(tensors[1]):
            raise FarflungError(
                f"data.build: {spec} has {len(tensors[0])} {name} inputs but {len(tensors[1])} targets",
                hint="the first dimension of both counts the samples",
            )
    (training, validation) = parts
    if not len(training[0]):
        raise FarflungError(f"data.build: {spec} has no training samples", hint="check where it reads its data")
    return (training[0], training[1]), (validation[0], validation[1])


def _groups(model: nn.Sequential) -> list[list[str]]:
    """Names of the children of each layer: every layer has parameters, so that every stage has something to train."""
    groups: list[list[str]] = []
    waiting: list[str] = []  # children without parameters at the front belong to the first layer
    for name, child in model.named_children():
        if any(True for _ in child.parameters()):
            groups.append([*waiting, name])
            waiting = []
        elif groups:
            groups[-1].append(name)
        else:
            waiting.append(name)
    return groups


def check_norms(model: nn.Module, where: str) -> None:
    """FarflungError for a layer that computes statistics over the batch (batch norm)."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise FarflungError(
                f"{where}: layer {name} is {type(module).__name__}, whose statistics have no meaning when a batch "
                "is shared out over nodes",
                hint="use GroupNorm or LayerNorm",
            )


def _check_model(model: nn.Sequential, spec: str) -> None:
    if not len(model):
        raise FarflungError(f"model.build: {spec} returned an empty nn.Sequential", hint="give it at least one layer")
    check_norms(model, "model.build")
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and not isinstance(module, nn.Dropout) and module.p > 0:
            what = f"not yet: {type(module).__name__}, as in layer {name} of {spec}"
            raise FarflungError(what, hint="use nn.Dropout, or set p = 0")
    count = sum(1 for _ in model.named_parameters(remove_duplicate=False))
    if count != len(list(model.parameters())):
        raise FarflungError(f"not yet: {spec} shares a parameter between layers", hint="give each layer its own")
    if not count:
        raise FarflungError(
            f"model.build: {spec} returned a model without parameters", hint="there is nothing to train"
        )
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    if frozen:
        raise FarflungError(f"not yet: frozen parameters, as {frozen[0]} of {spec}", hint="leave requires_grad on")
