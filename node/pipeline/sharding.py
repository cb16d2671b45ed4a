"""A node's stages with their parameters in pieces on the ranks of an island: torch's FSDP2 (``fully_shard``).

The sections, with all that rounds and the optimiser move, are the first process's, in main memory; what lies here
is for passes alone.

Every rank keeps the same cut of each parameter, rows of its first dimension, and of its gradient. A layer's parameters
are whole on a rank only while it computes with them, forward and again backward; its gradients are added up over
the ranks as it ends. A sharded pass is one of all ranks together: none may leave one out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from ...proto.errors import FarflungError
from ...scheduler import Plan
from ..models.definition import ModelDefinition
from ..models.stage import StageModel
from ..state.sections.section import Layout
from ..state.stage_state import section_parameters


def rows_of(length: int, ranks: int, rank: int) -> slice:
    """The rows of a parameter of ``length`` rows that a rank holds: as ``torch.chunk`` cuts them, so that the last
    ranks have fewer, or none."""
    size = -(-length // ranks)
    return slice(min(rank * size, length), min((rank + 1) * size, length))


class ShardedStages:
    """One rank's pieces of the stages that a plan gives the node called ``name``.

    Attributes:
        models: the stages, to be computed with by all ranks at the same time.

    Raises:
        FarflungError: the model has parameters that have no place in pieces.
    """

    def __init__(self, definition: ModelDefinition, plan: Plan, name: str, mesh: DeviceMesh) -> None:
        self._ranks, self._device = dist.get_world_size(), torch.device(mesh.device_type)
        stages = plan.stages_of(name)
        self.models: list[StageModel] = []
        self._pieces: dict[str, DTensor] = {}
        for stage in stages:
            # On a CPU memory that nothing was written to takes no place, so no rank ever holds the whole stage.
            model = definition.build(*plan.stages[stage])
            self._pieces.update(shard(model, mesh))
            self.models.append(model)
        self._layouts = [
            Layout.of(section, {parameter: definition.shapes[parameter] for parameter in parameters})
            for section, parameters in section_parameters(definition, plan, stages).items()
        ]

    def obey(self, recompute: int | None) -> None:
        """``recompute``: whether the plan wants activations computed again; None where it leaves that to the job."""
        for model in self.models if recompute is not None else ():
            model.recompute = bool(recompute)

    @property
    def bytes_held(self) -> int:
        """Of this rank's pieces of the parameters."""
        return sum(piece.to_local().nbytes for piece in self._pieces.values())

    # ---- weights out, gradients in ---------------------------------------------------------

    @torch.no_grad()
    def give(self, weights: Iterable[Tensor]) -> None:
        """The first rank: hand each rank its pieces of these vectors, one of each section."""
        for name, values in self._views(weights):
            for rank in range(1, self._ranks):
                if len(piece := self._piece(values, rank)):
                    dist.send(piece.to(self._device).contiguous(), rank)
            self._local(name).copy_(self._piece(values, 0))
        self._forget()

    @torch.no_grad()
    def take(self) -> None:
        """Every other rank: its pieces, as the first gives them."""
        for layout in self._layouts:
            for name in layout.names:
                if len(local := self._local(name)):
                    dist.recv(local, 0)
        self._forget()

    @torch.no_grad()
    def collect(self, gradients: Iterable[Tensor]) -> None:
        """The first rank: fill these vectors, one of each section, with the sums of all ranks' gradients."""
        for name, values in self._views(gradients):
            self._piece(values, 0).copy_(self._gradient(name))
            for rank in range(1, self._ranks):
                if len(piece := self._piece(values, rank)):
                    came = torch.empty_like(piece, device=self._device)
                    dist.recv(came, rank)
                    piece.copy_(came)
            values.mul_(self._ranks)  # FSDP takes the mean over the ranks

    @torch.no_grad()
    def hand_in(self) -> None:
        """Every other rank: its pieces of the gradients, to the first."""
        for layout in self._layouts:
            for name in layout.names:
                if len(gradient := self._gradient(name)):
                    dist.send(gradient.contiguous(), 0)

    def _views(self, vectors: Iterable[Tensor]) -> Iterator[tuple[str, Tensor]]:
        return chain.from_iterable(layout.views(vector) for layout, vector in zip(self._layouts, vectors, strict=True))

    def _piece(self, values: Tensor, rank: int) -> Tensor:
        """A rank's rows of a whole parameter: a view."""
        return values[rows_of(len(values), self._ranks, rank)]

    def _local(self, name: str) -> Tensor:
        return self._pieces[name].to_local()

    def _gradient(self, name: str) -> Tensor:
        """This rank's piece; zeros where no pass has reached the parameter."""
        gradient = self._pieces[name].grad
        if gradient is None:
            return torch.zeros_like(self._local(name))
        assert isinstance(gradient, DTensor)
        return gradient.to_local()

    def _forget(self) -> None:
        """Gradients begin anew."""
        for piece in self._pieces.values():
            piece.grad = None


def shard(model: StageModel, mesh: DeviceMesh) -> dict[str, DTensor]:
    """Cut a stage's parameters in place over the ranks of ``mesh``: each layer is a unit of its own, and so is each
    module outside of layers. This rank's pieces by the parameters' names; ``model`` itself no longer knows those
    outside of its layers by name.

    Raises:
        FarflungError: a parameter does not train, or is a single number.
    """
    named = dict(model.named_parameters())
    for name, parameter in named.items():
        if not parameter.requires_grad or not parameter.dim():
            why = "is a single number" if parameter.requires_grad else "does not train"
            raise FarflungError(
                f'parallel.inside = "fsdp" cannot cut this model: its parameter {name} {why}',
                'write inside = "ddp" under [parallel]',
            )
    names = {id(parameter): name for name, parameter in named.items()}
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
    named.clear()
    for module in model.around:  # tables that are no parameters
        for own, values in module.named_buffers(recurse=False):
            if not values.is_meta:
                module._buffers[own] = values.to(mesh.device_type)
    for unit in [*_units(outside), *([layer] for layer in model.inner)]:
        fully_shard(unit if len(unit) > 1 else unit[0], mesh=mesh, reshard_after_forward=True)
    model.outside = nn.ModuleList(outside)  # so that they are units below the stage, which is the root
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    found = {}
    for name, module, own in places:
        piece = getattr(module, own)
        assert isinstance(piece, DTensor)
        found[name] = piece
    return found


def _let_go(model: StageModel, computing: Iterable[nn.Module]) -> None:
    """Take the parameters out of modules that only give them their names: these would go on holding them whole."""
    kept = {id(module) for module in computing}
    for module in model.modules():
        if id(module) not in kept:
            for own in [name for name, _ in module.named_parameters(recurse=False)]:
                del module._parameters[own]


def _units(modules: Sequence[nn.Module]) -> list[list[nn.Module]]:
    """The modules, those with a parameter in common (a tied embedding) together; what lies inside another one first."""
    units: list[tuple[set[int], list[nn.Module]]] = []
    for module in reversed(modules):
        held = {id(parameter) for parameter in module.parameters(recurse=False)}
        near = [unit for unit in units if unit[0] & held]
        units = [unit for unit in units if not unit[0] & held]
        together = [*chain.from_iterable(found for _, found in near), module]
        units.append((held.union(*(ids for ids, _ in near)), together))
    return [unit for _, unit in units]
