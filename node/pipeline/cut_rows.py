"""A stage whose parameters lie in rows on the ranks of an island: torch's FSDP2 (``fully_shard``).

A rank has a layer's whole parameters only while it computes that layer, forward and again backward; the gradients are
averaged over the ranks at the end of the layer's backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from ..models.stage import StageModel
from .piece import Piece


def cut_rows(
    model: StageModel, mesh: DeviceMesh, cut: Mapping[str, Piece] | None = None, *, half: bool = False
) -> dict[str, Piece]:
    """Cut a stage's parameters in place over the ranks of ``mesh`` (of one dimension). Each layer is an FSDP unit, and
    so is each module outside of the layers.

    ``cut``: the pieces whose matrices the ranks of a row share already. Returns this rank's pieces by the parameters'
    names. ``half``: passes run under autocast in bf16; then layers are gathered in bf16, or each pass in flight would
    keep autocast's copies of whole matrices. Afterwards ``model`` has the parameters outside of its layers under other
    names.
    """
    cut = cut or {}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    inside = [module for layer in model.inner for module in layer.modules()]
    outside = [
        module
        for module in model.around
        if any(id(parameter) in names for parameter in module.parameters(recurse=False))
    ]
    computing = dict.fromkeys([*outside, *inside])
    places = [
        (names[id(parameter)], module, own)
        for module in computing
        for own, parameter in module.named_parameters(recurse=False)
    ]
    _let_go(model, computing)
    for unit in [*_units(outside), *([layer] for layer in model.inner)]:
        policy = _policy(unit, half)
        fully_shard(unit if len(unit) > 1 else unit[0], mesh=mesh, reshard_after_forward=True, mp_policy=policy)
    model.outside = nn.ModuleList(outside)  # FSDP's root is the stage, so its units must be submodules
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    found = {}
    for name, module, own in places:
        before = cut.get(name)
        dim, summed = (None, False) if before is None else (before.dim, before.summed)
        found[name] = Piece(getattr(module, own), dim, summed)
    return found


def _policy(unit: Sequence[nn.Module], half: bool) -> MixedPrecisionPolicy:
    """In which precision a unit is gathered. Sums over ranks are in fp32. An embedding stays in fp32, as it does under
    autocast: it begins the hidden state."""
    if not half or any(isinstance(module, nn.Embedding) for module in unit):
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)


def _let_go(model: StageModel, computing: Iterable[nn.Module]) -> None:
    """Remove the parameters from modules that only give them names: they would keep the whole tensors alive."""
    kept = {id(module) for module in computing}
    for module in model.modules():
        if id(module) not in kept:
            for own in [name for name, _ in module.named_parameters(recurse=False)]:
                del module._parameters[own]


def _units(modules: Sequence[nn.Module]) -> list[list[nn.Module]]:
    """The modules grouped into units: modules with a common parameter (a tied embedding) are one unit. Inner modules
    come before those that contain them."""
    units: list[tuple[set[int], list[nn.Module]]] = []
    for module in reversed(modules):
        held = {id(parameter) for parameter in module.parameters(recurse=False)}
        near = [unit for unit in units if unit[0] & held]
        units = [unit for unit in units if not unit[0] & held]
        together = [*chain.from_iterable(found for _, found in near), module]
        units.append((held.union(*(ids for ids, _ in near)), together))
    return [unit for _, unit in units]
