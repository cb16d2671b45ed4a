"""The rows of a dataset in memory: their tokens, which tokens count in the loss, and checks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..job.data.marks import IGNORED
from ..proto.errors import OWN, JobError

_MASKS = ("loss_mask", "completion_mask", "assistant_masks")
"""The label by which transformers' Trainer excludes a token from the loss."""
Collator = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Rows:
    """Concatenated rows of a dataset: ``tokens`` uint16 or uint32 [n], ``trains`` bool [n] (the token counts in the
    loss), and the index at which each row ends."""

    tokens: npt.NDArray[Any]
    trains: npt.NDArray[np.bool_]
    ends: Sequence[int]

    @property
    def is_plain(self) -> bool:
        """Whether all tokens count in the loss, so that rows are concatenated as text."""
        return bool(self.trains.all())

    def write(self, path: Path) -> None:
        """Write the rows in the format of ``data.chat``: each row is a document, with its tokens that count in the
        loss."""
        with path.open("w", encoding="utf-8") as file:
            begin = 0
            for end in self.ends:
                ids = self.tokens[begin:end].astype(np.int64)
                labels = np.where(self.trains[begin:end], ids, IGNORED)
                file.write(json.dumps({"input_ids": ids.tolist(), "labels": labels.tolist()}) + "\n")
                begin = end

    @property
    def digested(self) -> npt.NDArray[Any]:
        """One array with the whole content of the rows, to compute a digest of."""
        if self.is_plain:
            return self.tokens
        ends = np.zeros(len(self.tokens), np.int64)
        ends[np.array(self.ends[:-1], np.int64)] = 1
        marks: npt.NDArray[np.int64] = (self.trains.astype(np.int64) << 40) | (ends << 41)
        whole: npt.NDArray[np.int64] = self.tokens.astype(np.int64) | marks
        return whole


def rows_of(
    dataset: Iterable[Any], pad: int | None = None, end: int | None = None, collator: Collator | None = None
) -> Rows:
    """All rows of a dataset, without tokens that an ``attention_mask`` marks as padding.

    ``pad``, ``end``: the tokenizer's padding and end-of-text tokens. ``collator``: called with each row alone, as a
    batch of one. JobError: no tokens, padding without a mask, or labels that are not for a causal language model.
    """
    tokens, trains, ends, count = [], [], [], 0
    for number, item in enumerate(dataset):
        where = f"item {number} of the dataset"
        ids, learnt = _row(where, item if collator is None else _collated(where, collator, item), pad, end)
        tokens.append(ids)
        trains.append(learnt)
        count += len(ids)
        ends.append(count)
    if not count:
        raise JobError("the dataset has no tokens", "give items with input_ids")
    whole = np.concatenate(tokens)
    kind = np.uint16 if whole.max() < 2**16 else np.uint32
    return Rows(whole.astype(kind), np.concatenate(trains), ends)


def _collated(where: str, collator: Collator, item: Any) -> Mapping[str, Any]:
    """The batch that a collator makes of one row. JobError: it is no mapping with one row."""
    try:
        batch = collator([item])
    except OWN as error:  # a person's function may fail in any way
        name = getattr(collator, "__qualname__", type(collator).__name__)
        what = f"{where}: the data_collator {name} failed: {type(error).__name__}: {error}"
        raise JobError(what, "it is called with each row alone: collator([row])") from error
    if isinstance(batch, Mapping):  # transformers' own have labels of None where the row has none
        batch = {name: value for name, value in batch.items() if value is not None}
    if not isinstance(batch, dict) or any(np.shape(value)[:1] != (1,) for value in batch.values()):
        raise JobError(f"{where}: the data_collator makes no batch of one row of it", "input_ids and labels, [1, n]")
    return {name: value[0] for name, value in batch.items()}


def _row(where: str, item: Any, pad: int | None, end: int | None) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """The tokens of a row, and which of them train."""
    values = item if isinstance(item, Mapping) else {"input_ids": item}
    if "input_ids" not in values:
        raise JobError(f"{where} has no input_ids; it has: {', '.join(map(str, values))}", "tokenise the rows first")
    ids = np.asarray(values["input_ids"])
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or (ids.size and ids.min() < 0):
        if ids.size or ids.ndim != 1:
            raise JobError(f"{where} is no row of token ids: {ids.dtype} {ids.shape}")
        ids = ids.astype(np.int64)  # an empty row has a float dtype
    kept = _kept(where, values.get("attention_mask"), len(ids))
    if values.get("attention_mask") is None:
        _refuse_padding(where, ids, pad, end)
    trains = np.ones(len(ids), np.bool_)
    labels = values.get("labels")
    if labels is not None:
        labels = np.asarray(labels)
        if labels.shape != ids.shape or ((labels != ids) & (labels != IGNORED))[kept].any():
            raise JobError(
                f"{where} has labels that are neither its input_ids nor {IGNORED}",
                "a language model learns what follows: labels only say which tokens train",
            )
        trains &= labels != IGNORED
    for name in _MASKS:
        if values.get(name) is not None:
            mask = np.asarray(values[name]).astype(np.bool_)
            if mask.shape != ids.shape:
                raise JobError(f"{where} has a {name} of another length than its input_ids")
            trains &= mask
    return ids[kept], trains[kept]


def _kept(where: str, mask: Any, length: int) -> slice:
    """The range of tokens that a mask keeps, between the padding at either end."""
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
    """JobError for a row with padding: one padding token at either end shows it, or two if that token also ends
    texts."""
    least = 2 if pad == end else 1
    if pad is None or len(ids) < least:
        return
    if (ids[:least] == pad).all() or (ids[-least:] == pad).all():
        raise JobError(
            f"{where} is filled up with the padding token {pad}, which would be trained on",
            "hand in its attention_mask too, or rows without padding",
        )
