"""A stage whose blocks' matrices are cut over the ranks of an island (tensor parallel): torch's ``parallelize_module``.

Every rank computes all samples, with some of the attention heads and a part of the MLP's inner width. The output of
each pair of matrices is summed over the ranks. Embeddings, norms and the head are whole on every rank, and each
computes them.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle

from ..models.decoders.matrix_plan import Cut
from ..models.stage import StageModel
from .piece import Piece


def cut_matrices(model: StageModel, mesh: DeviceMesh, plan: Mapping[str, Cut]) -> dict[str, Piece]:
    """Cut the matrices of a stage's blocks in place over the ranks of ``mesh`` (of one dimension).

    ``plan``: path in the block -> cut. Returns this rank's pieces by the parameters' names."""
    summed = set()
    for layer in model.inner:
        styles: dict[str, ParallelStyle] = {}
        for path, cut in plan.items():
            if cut == "columns":
                styles[path] = ColwiseParallel()
            elif cut == "rows":
                styles[path] = RowwiseParallel()
            else:
                summed |= {id(parameter) for parameter in layer.get_submodule(path).parameters()}
        parallelize_module(layer, mesh, styles)
    model.to(mesh.device_type)
    found = {}
    for name, parameter in model.named_parameters():
        dim = None
        if isinstance(parameter, DTensor):
            (placed,) = parameter.placements
            dim = placed.dim if isinstance(placed, Shard) else None
        found[name] = Piece(parameter, dim, id(parameter) in summed)
    return found
