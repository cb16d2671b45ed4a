"""Reads and writes ranges of a parameter's vectors as if they were one sequence of bytes, whatever their dtype and
device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..sections.room import leave
from ..stage_state import REFERENCE, StageState

Vectors = Mapping[str, Tensor]
"""prefix -> one parameter's values in a vector of its section, always in the same order."""


def named(states: Sequence[StageState]) -> dict[str, dict[str, Tensor]]:
    """parameter -> prefix -> view, of all of these states."""
    return {name: vectors for state in reversed(states) for name, vectors in state.named().items()}


def frozen(state: StageState) -> dict[str, dict[str, Tensor]]:
    """A copy in main memory of the vectors that peers may ask for; in delta mode without the moments, which belong to
    the node alone."""
    return {
        name: {
            prefix: values.detach().to("cpu", copy=True)
            for prefix, values in vectors.items()
            if state.gradient or prefix in REFERENCE
        }
        for name, vectors in state.named().items()
    }


def byte_size(vectors: Sequence[Tensor]) -> int:
    return sum(values.nbytes for values in vectors)


def _ranges(vectors: Sequence[Tensor], offset: int, length: int) -> Iterator[Tensor]:
    """The views (uint8 [bytes]) that together are bytes [offset, offset + length) of the concatenated vectors."""
    start, stop = offset, offset + length
    for values in vectors:
        size = values.nbytes
        if start < size and stop > 0:
            yield values.detach().view(-1).view(torch.uint8)[max(0, start) : min(stop, size)]
        start, stop = start - size, stop - size


def bytes_of(vectors: Sequence[Tensor], offset: int, length: int) -> Iterator[memoryview]:
    """These bytes in pieces, each to be read before the next one is asked for."""
    for part in _ranges(vectors, offset, length):
        yield part.cpu().contiguous().numpy().data
        leave(part)


def copied(vectors: Sequence[Tensor], offset: int, length: int) -> bytes:
    """A copy of these bytes."""
    found = b"".join(bytes_of(vectors, offset, length))
    leave(*_ranges(vectors, offset, length))
    return found


def write_bytes(vectors: Sequence[Tensor], offset: int, payload: npt.NDArray[np.uint8]) -> None:
    came, start = torch.from_numpy(payload), 0
    for part in _ranges(vectors, offset, payload.nbytes):
        part.copy_(came[start : start + part.numel()])
        leave(part)
        start += part.numel()
