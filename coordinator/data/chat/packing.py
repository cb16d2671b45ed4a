"""Packs documents of marked tokens into rows, and keeps them on the disk until all lengths are known."""

from __future__ import annotations

import bisect
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ....job.data.marks import FIRST
from ....proto.process.progress import Meter
from ..data import split

_OPEN = 64  # rows that still take documents
_BLOCK = 4096  # rows in a block


def packed(lengths: Sequence[int], most: int, several: bool) -> list[list[int]]:
    """The documents (indices in ``lengths``) of each row of ``most`` tokens. The fullest open row with room takes the
    next document; where no row has room and too many are open, the fullest is closed and a new row begins. Rows are in
    the order of their first document."""
    if not several:
        return [[number] for number in range(len(lengths))]
    rows: list[list[int]] = []
    waiting: list[tuple[int, int]] = []  # (room, row) of open rows, the least room first
    for number, length in enumerate(lengths):
        at = bisect.bisect_left(waiting, (length, -1))
        if at < len(waiting):
            room, row = waiting.pop(at)
        else:
            if len(waiting) >= _OPEN:
                waiting.pop(0)
            room, row = most, len(rows)
            rows.append([])
        rows[row].append(number)
        if room - length > 1:  # a document has at least two tokens
            bisect.insort(waiting, (room - length, row))
    return rows


class Spool:
    """Documents in one file on the disk. ``lengths``: tokens of each document; ``groups``: the number of the
    conversation to which each belongs."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.NamedTemporaryFile(dir=folder, prefix=".tokens-")  # noqa: SIM115 - `close` does
        self.lengths: list[int] = []
        self.groups: list[int] = []

    def add(self, documents: Iterable[tuple[str, npt.NDArray[np.uint32]]], meter: Meter) -> None:
        """Append ``documents``: (where their conversation is, tokens)."""
        for _, of_one in groupby(documents, key=lambda one: one[0]):
            group = self.groups[-1] + 1 if self.groups else 0
            for _, document in of_one:
                self._file.write(document.astype("<u4").data)
                self.lengths.append(len(document))
                self.groups.append(group)
                meter.add(len(document))
        self._file.flush()

    def split(self, validation: float) -> tuple[list[int], list[int]]:
        """(training, validation): the numbers of the documents. Whole conversations are held out, evenly spread."""
        groups = np.array(self.groups)
        held = np.isin(groups, split(int(groups[-1]) + 1, validation)[0])
        return np.flatnonzero(~held).tolist(), np.flatnonzero(held).tolist()

    def rows(self, numbers: Sequence[int], way: Sequence[Sequence[int]], most: int) -> Iterator[npt.NDArray[np.uint32]]:
        """Blocks of rows, uint32 [some, most]. ``way``: for each row indices into ``numbers`` (see `packed`)."""
        tokens = np.memmap(self._file.name, "<u4", mode="r")
        starts = np.append(0, np.cumsum(self.lengths, dtype=np.int64))
        for at in range(0, len(way), _BLOCK):
            block = np.zeros((len(way[at : at + _BLOCK]), most), np.uint32)
            for row, some in zip(block, way[at : at + _BLOCK], strict=True):
                filled = 0
                for document in (numbers[one] for one in some):
                    row[filled : filled + self.lengths[document]] = tokens[starts[document] : starts[document + 1]]
                    filled += self.lengths[document]
                if filled < most:
                    row[filled] = FIRST
            yield block

    def close(self) -> None:
        """Delete the file."""
        self._file.close()
