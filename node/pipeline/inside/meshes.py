"""The ranks of an island as torch's device meshes."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from .grid import Grid

ROWS, COLUMNS = "rows", "columns"


class Meshes:
    """The meshes of one process group, each made once. All ranks must ask for the same ones in the same order."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        """The devices' type: cpu or cuda."""
        self._made: dict[Grid, DeviceMesh] = {}

    def of(self, grid: Grid) -> DeviceMesh:
        """The mesh of a grid, with dimensions "rows" and "columns"."""
        if grid not in self._made:
            shape = (grid.rows, grid.columns)
            self._made[grid] = init_device_mesh(self.kind, shape, mesh_dim_names=(ROWS, COLUMNS))
        return self._made[grid]
