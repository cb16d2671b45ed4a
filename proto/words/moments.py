"""The shapes of moments that are not a parameter's own, shared by the nodes that write them and the coordinator that
checks their files."""

from __future__ import annotations

from collections.abc import Sequence


def factored(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape in which a second moment is kept as means of rows and of columns: [..., rows + columns] for matrices
    [..., rows, columns], the rows' means first. Vectors, and matrices of one row or column, have their own shape: never
    is it longer than the parameter."""
    if len(shape) < 2 or min(shape[-2:]) < 2:
        return tuple(shape)
    return (*shape[:-2], shape[-2] + shape[-1])
