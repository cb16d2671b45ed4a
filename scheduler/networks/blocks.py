"""Matrices of links kept as a table by region: written out for thousands of devices, they would take gigabytes.

With so many devices only their regions are known, so one table of regions describes all links. A matrix made from it is
indexed as an array [n, n] is: [rows, columns], int arrays of device indices that numpy can broadcast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
from numpy.typing import NDArray

Matrix = NDArray[numpy.float64]

WRITTEN_OUT = 1100
"""Devices up to which a network's matrices are arrays of [n, n]."""


class Gathered:
    """An [n, n] matrix whose entries a function computes from (rows, columns), int arrays of one shape."""

    def __init__(self, count: int, values: Callable[[numpy.ndarray, numpy.ndarray], Matrix]) -> None:
        self.shape = (count, count)
        self._values = values

    def __getitem__(self, index: tuple[Any, Any]) -> Any:
        rows, columns = numpy.broadcast_arrays(*(numpy.asarray(each) for each in index))
        return self._values(rows, columns)


class Blocks(Gathered):
    """An [n, n] matrix by regions. table: float64 [r, r], the entry for each pair of regions. home: int [n], each
    device's region. diagonal: the entry of a device with itself."""

    def __init__(self, home: numpy.ndarray, table: Matrix, diagonal: float) -> None:
        self.home, self.table, self.diagonal = home, table, diagonal
        super().__init__(
            len(home),
            lambda rows, columns: numpy.where(rows == columns, diagonal, table[home[rows], home[columns]]),
        )

    def __getitem__(self, index: tuple[Any, Any]) -> Any:
        rows, columns = (numpy.asarray(each) for each in index)
        if rows.ndim != 2 or columns.ndim != 2 or rows.shape[1] != 1 or columns.shape[0] != 1:
            return super().__getitem__((rows, columns))
        # A block of rows x columns: taking the table's rows first, then its columns, takes a fifth of the time.
        square = self.table[self.home[rows[:, 0]]][:, self.home[columns[0]]]
        square[rows == columns] = self.diagonal
        return square

    def take(self, picked: numpy.ndarray) -> Blocks:
        """The matrix of some of the devices: [m, m] for picked, int [m]."""
        return Blocks(self.home[picked], self.table, self.diagonal)

    def written_out(self) -> Matrix:
        """float64 [n, n]."""
        result: Matrix = self.table[numpy.ix_(self.home, self.home)]
        numpy.fill_diagonal(result, self.diagonal)
        return result

    def row_max(self) -> Matrix:
        """float64 [n]: the largest entry of each device to another one."""
        here, count = numpy.unique(self.home, return_counts=True)
        table = self.table[numpy.ix_(here, here)].copy()
        alone = count < 2
        table[alone, alone] = 0.0
        most = numpy.zeros(len(self.table))
        most[here] = table.max(axis=1)
        result: Matrix = most[self.home]
        return result
