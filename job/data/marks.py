"""Rows of marked tokens: which of them train, and where documents begin.

A marked token is a uint32. Its lowest 30 bits are the token. `TRAINED`: the model learns to predict it. `FIRST`: it
begins a document, whose tokens do not attend to earlier ones. A row is ``context + 1`` marked tokens, as a row of plain
text is; the rest of it after its last document is one more document, in which no token trains.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

MARKED = "marked32"
"""`Facts.token_dtype` of such rows. A node that does not know it refuses the run."""
TRAINED = np.uint32(1 << 31)
FIRST = np.uint32(1 << 30)
_TOKEN = np.uint32((1 << 30) - 1)
IGNORED = -100
"""The target where nothing trains: the value that transformers and torch's cross entropy ignore."""


def marked(tokens: npt.ArrayLike, trains: npt.ArrayLike, first: bool = True) -> npt.NDArray[np.uint32]:
    """One document: ``tokens`` and whether each trains, both [n]. The first token never trains, because nothing
    predicts it."""
    found = np.asarray(tokens, np.uint32) | np.where(np.asarray(trains, bool), TRAINED, np.uint32(0))
    if first and len(found):
        found[0] = (found[0] & ~TRAINED) | FIRST
    return found


def tokens_of(rows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The tokens of marked rows, int64 of the same shape."""
    return (rows & _TOKEN).astype(np.int64)


def targets_of(rows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """For each token except a row's last one, the next token, or `IGNORED` where that does not train: int64 [b,
    context]."""
    behind = rows[..., 1:]
    return np.where(behind & TRAINED, (behind & _TOKEN).astype(np.int64), IGNORED)


def places_of(rows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """For each token except a row's last one, its position in its document, from 0: int64 [b, context]."""
    places = np.broadcast_to(np.arange(rows.shape[-1] - 1), rows[..., :-1].shape)
    begins = np.where(rows[..., :-1] & FIRST, places, 0)
    return places - np.maximum.accumulate(begins, axis=-1)


def trained_in(rows: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """How many tokens of each row train: uint32 [b]."""
    found: npt.NDArray[np.uint32] = np.count_nonzero(rows[..., 1:] & TRAINED, axis=-1).astype(np.uint32)
    return found
