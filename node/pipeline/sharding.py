"""A node's stages with their parameters in pieces on the ranks of an island.

The first process has the sections (all that rounds and the optimiser change) in main memory; the pieces here are used
only for passes.

Every rank keeps a piece of each parameter and of its gradient: some rows (cut_rows.py), the parts of matrices that
belong to its attention heads (cut_matrices.py), or some rows of these parts. All ranks must take part in every pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ...proto.errors import FarflungError
from ...scheduler import Plan
from ..ipc.arena import release_freed_memory
from ..models.decoders.matrix_plan import check_heads, matrix_plan, shares_of
from ..models.definition import LanguageModel, ModelDefinition
from ..models.stage import StageModel
from ..state.sections.cut import SECTIONS
from ..state.sections.section import Layout
from ..state.stage_state import section_parameters
from .cut_matrices import cut_matrices
from .cut_rows import cut_rows
from .inside.grid import BOTH, FSDP, TP, Grid, grid_of
from .inside.meshes import COLUMNS, ROWS, Meshes
from .piece import Piece


class ShardedStages:
    """One rank's pieces of the stages that a plan gives the node called ``name``.

    Attributes:
        grid: the samples of a pass are divided over its rows; the ranks of a row compute the same samples.
        models: the stages; all ranks must compute with them at the same time.

    Raises:
        FarflungError: the model has parameters that cannot be cut.
    """

    def __init__(self, definition: ModelDefinition, inside: str, plan: Plan, name: str, meshes: Meshes) -> None:
        self.grid = check_inside(definition, inside, dist.get_world_size())
        self._rank, self._device = dist.get_rank(), torch.device(meshes.kind)
        mesh = meshes.of(self.grid)
        stages = plan.stages_of(name)
        self.models: list[StageModel] = []
        self._pieces: dict[str, Piece] = {}
        for stage in stages:
            # On a CPU untouched memory has no pages, so no rank ever holds the whole stage.
            model = definition.build(*plan.stages[stage])
            _move_tables(model, self._device)
            self._pieces.update(_cut(definition, inside, model, mesh))
            self.models.append(model)
        self._layouts = [
            Layout.of(section, {parameter: definition.shapes[parameter] for parameter in parameters})
            for section, parameters in section_parameters(definition, plan, stages, SECTIONS).items()
        ]

    def obey(self, recompute: int | None) -> None:
        """``recompute``: the plan's choice whether activations are recomputed; None: the job decides."""
        for model in self.models if recompute is not None else ():
            model.recompute = bool(recompute)

    @property
    def bytes_held(self) -> int:
        """Bytes of this rank's pieces of the parameters."""
        return sum(piece.values.nbytes for piece in self._pieces.values())

    # ---- weights out, gradients in ---------------------------------------------------------

    @torch.no_grad()
    def give(self, weights: Iterable[Tensor]) -> None:
        """For the first rank: send each rank its pieces of these vectors, one per section."""
        for name, values in self._views(weights):
            own = self._pieces[name]
            for rank in range(1, self.grid.ranks):
                if (piece := own.of(values, self.grid, rank)).numel():
                    dist.send(piece.to(self._device).contiguous(), rank)
            own.values.copy_(own.of(values, self.grid, 0))
        self._forget()

    @torch.no_grad()
    def take(self) -> None:
        """For every other rank: receive its pieces from the first."""
        for own in self._in_order():
            if own.values.numel():
                came = torch.empty(own.values.shape, device=self._device)
                dist.recv(came, 0)
                own.values.copy_(came)
        self._forget()

    @torch.no_grad()
    def collect(self, gradients: Iterable[Tensor]) -> None:
        """For the first rank: fill these vectors, one per section, with the sums of all ranks' gradients."""
        for name, values in self._views(gradients):
            own = self._pieces[name]
            own.of(values, self.grid, 0).copy_(own.gradient)
            for rank in range(1, self.grid.ranks):
                piece = own.of(values, self.grid, rank)
                if piece.numel() and own.is_gathered(self.grid, rank):
                    came = torch.empty(piece.shape, device=self._device)
                    dist.recv(came, rank)
                    if own.is_added(self.grid, rank):
                        piece.add_(came.to(piece.device))
                    else:
                        piece.copy_(came)
            if self.grid.rows > 1:
                values.mul_(self.grid.rows)  # FSDP takes the mean over the rows
        self._tidy()

    @torch.no_grad()
    def hand_in(self) -> None:
        """For every other rank: send its pieces of the gradients to the first."""
        for own in self._in_order():
            if own.is_gathered(self.grid, self._rank) and (gradient := own.gradient).numel():
                dist.send(gradient.contiguous(), 0)
        self._tidy()

    def _tidy(self) -> None:
        """Call it after a step's passes: return freed memory, of which glibc would keep several times the pieces'
        size."""
        if self._device.type == "cpu":
            release_freed_memory()

    def _views(self, vectors: Iterable[Tensor]) -> Iterator[tuple[str, Tensor]]:
        pairs = zip(self._layouts, vectors, strict=True)
        return chain.from_iterable(layout.views(vector) for layout, vector in pairs)

    def _in_order(self) -> Iterator[Piece]:
        """The pieces in the order in which the first rank sends and receives them."""
        return (self._pieces[name] for layout in self._layouts for name in layout.names)

    def _forget(self) -> None:
        """Reset the gradients."""
        for piece in self._pieces.values():
            piece.parameter.grad = None


def check_inside(definition: ModelDefinition, inside: str, ranks: int) -> Grid:
    """The grid of an island of ``ranks`` devices with ``parallel.inside`` = ``inside``. FarflungError if it cannot hold
    this model."""
    if inside == FSDP:
        return grid_of(inside, ranks, 1)
    assert isinstance(definition, LanguageModel)
    matrix_plan(definition.config)
    if inside == TP:
        check_heads(definition.config, ranks)
    return grid_of(inside, ranks, shares_of(definition.config))


def _cut(definition: ModelDefinition, inside: str, model: StageModel, mesh: DeviceMesh) -> dict[str, Piece]:
    """Cut a stage's parameters in place. Returns this rank's pieces by name."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or not parameter.dim():
            why = "is a single number" if parameter.requires_grad else "does not train"
            raise FarflungError(
                f'parallel.inside = "{inside}" cannot cut this model: its parameter {name} {why}',
                'write inside = "ddp" under [parallel]',
            )
    if inside == FSDP:
        return cut_rows(model, mesh[ROWS])
    assert isinstance(definition, LanguageModel)
    pieces = cut_matrices(model, mesh[COLUMNS], matrix_plan(definition.config))
    return cut_rows(model, mesh[ROWS], pieces) if inside == BOTH else pieces


def _move_tables(model: StageModel, device: torch.device) -> None:
    """Move the buffers of modules that torch does not know as the stage's submodules to ``device``."""
    for module in model.around:
        for name, values in module.named_buffers(recurse=False):
            if not values.is_meta:
                module._buffers[name] = values.to(device)
