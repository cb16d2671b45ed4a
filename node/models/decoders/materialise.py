"""Gives modules on the meta device memory: parameters with undefined values, buffers with their values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ....proto.errors import FarflungError
from .anatomy import Anatomy, refused


def materialise(modules: Iterable[nn.Module], device: torch.device, frozen: torch.dtype = torch.float32) -> None:
    """Gives the direct parameters of each module that lie on the meta device memory on ``device``, in place: float32,
    values undefined. A parameter that two modules share stays shared; frozen ones stay frozen, and frozen matrices get
    the dtype ``frozen``."""
    made: dict[int, nn.Parameter] = {}
    for module in modules:
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.is_meta:
                if id(parameter) not in made:
                    matrix = not parameter.requires_grad and parameter.dim() > 1
                    dtype = frozen if matrix else torch.float32
                    dtype = torch.uint8 if parameter.dtype == torch.uint8 else dtype  # packed: see quantised.py
                    real = torch.empty(parameter.shape, dtype=dtype, device=device)
                    made[id(parameter)] = nn.Parameter(real, requires_grad=parameter.requires_grad)
                module.register_parameter(name, made[id(parameter)])


def fill_buffers(model: Any, modules: Iterable[nn.Module], device: torch.device) -> None:
    """Gives the direct buffers of each module (rotary tables, scales) the initial values that the `transformers` model
    ``model`` sets.

    Raises:
        FarflungError: the model does not set the initial value of a buffer.
    """
    for module in modules:
        empty = {name: buffer for name, buffer in module.named_buffers(recurse=False) if buffer.is_meta}
        if not empty:
            continue
        parameters = list(module.named_parameters(recurse=False))
        for name, parameter in parameters:  # parameters get their values elsewhere, and may be large
            module.register_parameter(name, nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad))
        found = [_filled(model, module, empty, value) for value in (0, 1)]
        for name, parameter in parameters:
            module.register_parameter(name, parameter)
        for name, buffer in found[0].items():
            if not torch.equal(buffer, found[1][name]):
                raise FarflungError(
                    f"the model family {model.config.model_type!r} does not say what the buffer {name} of "
                    f"{type(module).__name__} begins with",
                    hint="use a newer version of transformers",
                )
            module._buffers[name] = buffer.to(device)


def _filled(model: Any, module: nn.Module, empty: dict[str, Tensor], value: int) -> dict[str, Tensor]:
    """The buffers after `transformers`' initialisation, if they held ``value`` before it."""
    for name, buffer in empty.items():
        module._buffers[name] = torch.full(buffer.shape, value, dtype=buffer.dtype, device="cpu")
    with torch.no_grad():
        model._init_weights(module)
    return {name: getattr(module, name) for name in empty}


def freeze_buffers(model: Any, anatomy: Anatomy) -> list[str]:
    """Turns the buffers that a model's files contain (such as the correction bias of DeepSeek's routers) into frozen
    parameters, which keep the folder's values. Returns their names."""
    found = []
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name in model.state_dict():
        if name in parameters:
            continue
        path, _, last = name.rpartition(".")
        module = model.get_submodule(path)
        buffer = module._buffers[last]
        if not name.startswith(f"{anatomy.blocks}.") or not buffer.is_floating_point():
            raise refused(model.config.model_type, f"{name} is part of its files and no parameter")
        del module._buffers[last]
        module.register_parameter(last, nn.Parameter(buffer, requires_grad=False))
        found.append(name)
    return found
