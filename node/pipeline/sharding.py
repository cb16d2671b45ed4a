"""A node's stages with their parameters in pieces on the ranks of an island.

The sections (all that rounds and the optimiser change) lie in main memory that the ranks share
(inside/rank_sections.py); the pieces here are used only for passes.

Every rank keeps a piece of each parameter and of its gradient: some rows (cut_rows.py), the parts of matrices that
belong to its attention heads (cut_matrices.py), or some rows of these parts. All ranks must take part in every pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ...job.chosen import inside_of
from ...job.schema import Job
from ...proto.errors import FarflungError
from ...scheduler import Plan
from ..ipc.arena import release_freed_memory
from ..models.decoders.matrix_plan import check_heads, matrix_plan, shares_of
from ..models.definition import LanguageModel, ModelDefinition
from ..models.stage import StageModel
from ..state.sections.section import Section
from .cut_matrices import cut_matrices
from .cut_rows import check_rows, cut_rows
from .inside import carry
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

    def __init__(self, definition: ModelDefinition, job: Job, plan: Plan, name: str, meshes: Meshes) -> None:
        """``job``: with the plan's choices."""
        inside, half = inside_of(job, plan.chosen), job.train.precision == "bf16"
        self.grid = check_inside(definition, inside, dist.get_world_size(), meshes.kind)
        self._rank, self._device = dist.get_rank(), torch.device(meshes.kind)
        mesh = meshes.of(self.grid)
        stages = plan.stages_of(name)
        self.models: list[StageModel] = []
        self._pieces: dict[str, Piece] = {}
        for stage in stages:
            # On a CPU untouched memory has no pages, so no rank ever holds the whole stage.
            model = definition.build(*plan.stages[stage])
            model.recompute = job.train.recompute is True
            _move_tables(model, self._device)
            self._pieces.update(_cut(definition, inside, model, mesh, half=half))
            self.models.append(model)

    @property
    def bytes_held(self) -> int:
        """Bytes of this rank's pieces of the parameters."""
        return sum(piece.values.nbytes for piece in self._pieces.values())

    # ---- weights out, gradients in ---------------------------------------------------------

    @torch.no_grad()
    def take(self, sections: Sequence[Section], reference: bool) -> None:
        """Take this rank's pieces of the sections' x, or of their g (``reference``), and reset the gradients."""
        for section in sections:
            for name, values in section.layout.views(section.g if reference else section.x):
                own = self._pieces[name]
                own.values.copy_(own.of(values, self.grid, self._rank))
                own.parameter.grad = None

    @torch.no_grad()
    def put(self, sections: Sequence[Section]) -> None:
        """Write this rank's part of the sums of all ranks' gradients into the sections. All ranks must call it."""
        column = self.grid.place(self._rank)[1]
        first = self._rank - column
        for section in sections:
            for name, values in section.layout.views(section.grad):
                own = self._pieces[name]
                piece = own.of(values, self.grid, self._rank)
                if not piece.numel() or not own.is_gathered(self.grid, self._rank):
                    continue
                gradient = own.gradient
                if own.is_added(self.grid, self._rank):
                    carry.send(gradient, first)
                    continue
                piece.copy_(gradient)
                for other in range(first + 1, first + self.grid.columns) if own.dim is None and own.summed else ():
                    came = torch.empty(piece.shape, device=self._device)
                    carry.receive(came, other)
                    piece.add_(came.to(piece.device))
                if self.grid.rows > 1:
                    piece.mul_(self.grid.rows)  # FSDP takes the mean over the rows
        self._tidy()

    def _tidy(self) -> None:
        """Call it after a step's passes: return freed memory, of which glibc would keep several times the pieces'
        size."""
        if self._device.type == "cpu":
            release_freed_memory()


def check_inside(definition: ModelDefinition, inside: str, ranks: int, kind: str) -> Grid:
    """The grid of an island of ``ranks`` devices of a ``kind`` with ``parallel.inside`` = ``inside``. FarflungError if
    it cannot hold this model, or this torch cannot cut it."""
    if inside in (FSDP, BOTH):
        check_rows(inside, kind)
    if inside == FSDP:
        return grid_of(inside, ranks, 1)
    assert isinstance(definition, LanguageModel)
    matrix_plan(definition.config)
    if inside == TP:
        check_heads(definition.config, ranks)
    return grid_of(inside, ranks, shares_of(definition.config))


def _cut(
    definition: ModelDefinition, inside: str, model: StageModel, mesh: DeviceMesh, *, half: bool
) -> dict[str, Piece]:
    """Cut a stage's parameters in place. Returns this rank's pieces by name. ``half``: passes compute in bf16."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or not parameter.dim():
            why = "is a single number" if parameter.requires_grad else "does not train"
            raise FarflungError(
                f'parallel.inside = "{inside}" cannot cut this model: its parameter {name} {why}',
                'write inside = "ddp" under [parallel]',
            )
    if inside == FSDP:
        return cut_rows(model, mesh[ROWS], half=half)
    assert isinstance(definition, LanguageModel)
    pieces = cut_matrices(model, mesh[COLUMNS], matrix_plan(definition.config))
    return cut_rows(model, mesh[ROWS], pieces, half=half) if inside == BOTH else pieces


def _move_tables(model: StageModel, device: torch.device) -> None:
    """Move the buffers of modules that torch does not know as the stage's submodules to ``device``."""
    for module in model.around:
        for name, values in module.named_buffers(recurse=False):
            if not values.is_meta:
                module._buffers[name] = values.to(device)
