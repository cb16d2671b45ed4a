"""The rows of a dataset in memory as one sequence of tokens: what of them is trained on, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..proto.errors import JobError

_MASKS = ("loss_mask", "completion_mask", "assistant_masks")
"""What other trainers leave tokens out of the loss by."""


def tokens_of(dataset: Iterable[Any], pad: int | None = None, end: int | None = None) -> npt.NDArray[Any]:
    """The tokens of all rows, uint16 or uint32, without what an ``attention_mask`` marks as padding.

    ``pad``, ``end``: the tokenizer's tokens of padding and of a text's end. JobError: no tokens, padding without a
    mask, or labels and masks of another kind of training.
    """
    pieces = [_row(f"item {number} of the dataset", item, pad, end) for number, item in enumerate(dataset)]
    tokens = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
    if not tokens.size:
        raise JobError("the dataset has no tokens", "give items with input_ids")
    return tokens.astype(np.uint16 if tokens.max() < 2**16 else np.uint32)


def _row(where: str, item: Any, pad: int | None, end: int | None) -> npt.NDArray[Any]:
    values = item if isinstance(item, Mapping) else {"input_ids": item}
    if "input_ids" not in values:
        raise JobError(f"{where} has no input_ids; it has: {', '.join(map(str, values))}", "tokenise the rows first")
    ids = np.asarray(values["input_ids"])
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or (ids.size and ids.min() < 0):
        if ids.size or ids.ndim != 1:
            raise JobError(f"{where} is no row of token ids: {ids.dtype} {ids.shape}")
        ids = ids.astype(np.int64)  # a row of nothing
    kept = _kept(where, values.get("attention_mask"), len(ids))
    if values.get("attention_mask") is None:
        _refuse_padding(where, ids, pad, end)
    labels = values.get("labels")
    if labels is not None:
        labels = np.asarray(labels)
        if labels.shape != ids.shape or not np.array_equal(labels[kept], ids[kept]):
            raise JobError(
                f"{where} has labels that are not its input_ids",
                "leave labels out: every token is predicted from those before it",
            )
    for name in _MASKS:
        if values.get(name) is not None and not np.asarray(values[name]).astype(bool)[kept].all():
            raise JobError(
                f"{where} has a {name} that leaves tokens out of the loss",
                "leave it out to train on every token: masks of the loss are not known here",
            )
    return ids[kept]


def _kept(where: str, mask: Any, length: int) -> slice:
    """The tokens that a mask keeps: those between padding at either end."""
    if mask is None:
        return slice(0, length)
    kept = np.flatnonzero(np.asarray(mask))
    if np.shape(mask) != (length,):
        raise JobError(f"{where} has an attention_mask of another length than its input_ids")
    found = slice(int(kept[0]), int(kept[-1]) + 1) if len(kept) else slice(0, 0)
    if len(kept) != found.stop - found.start:
        raise JobError(f"{where} has an attention_mask with zeros between ones", "only padding can be masked")
    return found


def _refuse_padding(where: str, ids: npt.NDArray[Any], pad: int | None, end: int | None) -> None:
    """JobError for a row that is filled up: one padding token at an end tells, two where it may end a text too."""
    least = 2 if pad == end else 1
    if pad is None or len(ids) < least:
        return
    if (ids[:least] == pad).all() or (ids[-least:] == pad).all():
        raise JobError(
            f"{where} is filled up with the padding token {pad}, which would be trained on",
            "hand in its attention_mask too, or rows without padding",
        )
