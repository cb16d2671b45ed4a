"""A message's payload as pieces of bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .api import Bytes, Payload


def pieces_of(payload: Payload) -> list[memoryview]:
    """Each piece as a memoryview of bytes, without a copy if it is contiguous."""
    if isinstance(payload, bytes | bytearray | memoryview | np.ndarray):
        payload = (payload,)
    return [_flat(piece) for piece in payload]


def _flat(piece: Bytes) -> memoryview:
    view: memoryview = np.ascontiguousarray(piece).data if isinstance(piece, np.ndarray) else memoryview(piece)
    return view.cast("B") if view.nbytes else memoryview(b"")


def joined(pieces: list[memoryview], into: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Copies the pieces one after the other to the beginning of ``into``. Returns ``into``."""
    at = 0
    for piece in pieces:
        into[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
        at += len(piece)
    return into
