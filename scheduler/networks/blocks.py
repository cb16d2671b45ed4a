"""Matrices of links that are not written out: of thousands of devices they would take gigabytes.

What is known of so many devices is where they are, and so a table of regions; a matrix of it answers [rows, columns]
for arrays of device indices that numpy can broadcast, as an array of [n, n] does.
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
    """An [n, n] matrix by a function of (rows, columns), int arrays of one shape."""

    def __init__(self, count: int, values: Callable[[numpy.ndarray, numpy.ndarray], Matrix]) -> None:
        self.shape = (count, count)
        self._values = values

    def __getitem__(self, index: tuple[Any, Any]) -> Any:
        rows, columns = numpy.broadcast_arrays(*(numpy.asarray(each) for each in index))
        return self._values(rows, columns)


class Blocks(Gathered):
    """table: float64 [r, r], of the regions where both ends are. home: int [n], of each device. diagonal: of a device
    and itself."""

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
        # A square of devices: rows of the table first, then columns, takes a fifth of the time.
        square = self.table[self.home[rows[:, 0]]][:, self.home[columns[0]]]
        square[rows == columns] = self.diagonal
        return square

    def take(self, picked: numpy.ndarray) -> Blocks:
        """Of some of the devices, int [m]."""
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
