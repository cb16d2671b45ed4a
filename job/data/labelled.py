"""Rows of a text and its class: the tokens of the text, padding, and the class as the last element.

A row is ``context + 1`` marked tokens (marks.py), of which only the last trains: its "token" is the class. So a sample
is one target, whatever its length. Two more bits tell whether a token is of the first text, of the second, or padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...proto.errors import JobError
from .marks import FIRST, TRAINED

LAYOUT = "labelled"
"""`Facts.layout` of such rows."""
PADDING = 0
_SHIFT = np.uint32(28)
_TOKEN = np.uint32((1 << 28) - 1)


def labelled(tokens: Sequence[int], types: Sequence[int], label: int, context: int, pad: int) -> npt.NDArray[np.uint32]:
    """A row, uint32 [context + 1]. ``tokens``: at most ``context``; ``types``: 0 where one is of the first text, 1 of
    the second. ``pad``: the padding token."""
    row = np.full(context + 1, pad, np.uint32)
    row[: len(tokens)] = np.asarray(tokens, np.uint32) | (np.asarray(types, np.uint32) + np.uint32(1)) << _SHIFT
    row[0] |= FIRST
    row[-1] = np.uint32(label) | TRAINED
    return row


def texts_of(rows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The tokens of each row's text and its padding, int64 [b, context]."""
    return (rows[..., :-1] & _TOKEN).astype(np.int64)


def kinds_of(rows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The kind of each of these tokens: `PADDING`, 1 for the first text, 2 for the second. int64 [b, context]."""
    return ((rows[..., :-1] >> _SHIFT) & np.uint32(3)).astype(np.int64)


def class_names(config: Mapping[str, Any], given: Sequence[str] | None) -> tuple[str, ...]:
    """The names of a model's classes in order: the job's, else those of config.json, else two default names."""
    if given:
        return tuple(given)
    named = config.get("id2label")
    if isinstance(named, Mapping) and named:
        if len(named) < 2 or not all(str(key).isdecimal() for key in named):
            sentence = "model.pretrained: id2label in its config.json has to name two classes or more by numbers"
            hint = 'write classes = ["NAME OF 0", "NAME OF 1"] under [data]'
            raise JobError(f"{sentence}: {dict(named)!r:.60}", hint)
        return tuple(str(named[key]) for key in sorted(named, key=int))
    count = config.get("num_labels")
    return tuple(f"LABEL_{number}" for number in range(count if isinstance(count, int) and count > 1 else 2))


def class_number(value: Any, names: Sequence[str]) -> int | None:
    """The number of the class that a row's label names, by name or number; None where there is no such class."""
    if isinstance(value, str):
        if value in names:
            return list(names).index(value)
        value = float(value) if value.strip().replace(".", "", 1).isdecimal() else None
    if isinstance(value, (int, float)) and 0 <= value < len(names) and value == int(value):  # no NaN gets to int
        return int(value)
    return None
