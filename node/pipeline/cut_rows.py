"""A stage whose parameters lie in rows on the ranks of an island: torch's FSDP2 (``fully_shard``).

A rank has a layer's whole parameters only while it computes that layer, forward and again backward; the gradients are
averaged over the ranks at the end of the layer's backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from ...proto.errors import FarflungError
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
        _sum_only(unit[0])
    model.outside = nn.ModuleList(outside)  # FSDP's root is the stage, so its units must be submodules
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    found = {}
    for name, module, own in places:
        before = cut.get(name)
        dim, summed = (None, False) if before is None else (before.dim, before.summed)
        found[name] = Piece(getattr(module, own), dim, summed)
    return found


def check_rows(inside: str, kind: str) -> None:
    """FarflungError if this torch cannot cut parameters into rows on devices of this ``kind``: 2.6 fails on CPUs in the
    first pass."""
    if kind == "cpu" and not hasattr(torch.cpu.Stream, "record_event"):
        raise FarflungError(
            f'parallel.inside = "{inside}" does not work on CPUs with torch {torch.__version__}, which is too old',
            'pip install -U torch, or write inside = "ddp" under [parallel]',
        )


def _policy(unit: Sequence[nn.Module], half: bool) -> MixedPrecisionPolicy:
    """In which precision a unit is gathered. Sums over ranks are in fp32, or in fp64 where only this makes FSDP sum and
    divide instead of asking gloo for a mean. An embedding stays in fp32, as it does under autocast: it begins the
    hidden state."""
    sums = torch.float64 if _needs_sums() and not _sums_on_request() else None
    if not half or any(isinstance(module, nn.Embedding) for module in unit):
        return MixedPrecisionPolicy(reduce_dtype=sums)
    return MixedPrecisionPolicy(torch.bfloat16, sums or torch.float32, cast_forward_inputs=False)


def _sum_only(module: nn.Module) -> None:
    """Let FSDP sum a unit's gradients and divide them itself, where not every torch's gloo computes means."""
    if _needs_sums() and _sums_on_request():
        assert isinstance(module, FSDPModule)
        module.set_force_sum_reduction_for_comms(True)


def _needs_sums() -> bool:
    """Whether the ranks communicate by gloo."""
    return dist.get_backend() == "gloo"


def _sums_on_request() -> bool:
    """Whether this torch can be told to use sums only."""
    return hasattr(FSDPModule, "set_force_sum_reduction_for_comms")


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
