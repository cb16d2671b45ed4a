"""Documents of marked tokens: which of them share a row, and where they wait until that is known."""

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
_BLOCK = 4096  # rows handed on at once


def packed(lengths: Sequence[int], most: int, several: bool) -> list[list[int]]:
    """Which documents go into each row of ``most`` tokens: of some open rows the fullest that has room takes the next
    one; where none has, the fullest is closed and a new one begun. Rows are in the order of their first document."""
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
        if room - length > 1:  # a document has two tokens at least
            bisect.insort(waiting, (room - length, row))
    return rows


class Spool:
    """Documents on the disk, one behind the other. ``lengths``: tokens of each; ``groups``: the number of the
    conversation that each is of."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.NamedTemporaryFile(dir=folder, prefix=".tokens-")  # noqa: SIM115 - `close` does
        self.lengths: list[int] = []
        self.groups: list[int] = []

    def add(self, documents: Iterable[tuple[str, npt.NDArray[np.uint32]]], meter: Meter) -> None:
        """``documents``: (what their conversation is found by, tokens)."""
        for _, of_one in groupby(documents, key=lambda one: one[0]):
            group = self.groups[-1] + 1 if self.groups else 0
            for _, document in of_one:
                self._file.write(document.astype("<u4").data)
                self.lengths.append(len(document))
                self.groups.append(group)
                meter.add(len(document))
        self._file.flush()

    def split(self, validation: float) -> tuple[list[int], list[int]]:
        """(training, validation) numbers of documents: conversations are held out whole, evenly spread."""
        groups = np.array(self.groups)
        held = np.isin(groups, split(int(groups[-1]) + 1, validation)[0])
        return np.flatnonzero(~held).tolist(), np.flatnonzero(held).tolist()

    def rows(self, numbers: Sequence[int], way: Sequence[Sequence[int]], most: int) -> Iterator[npt.NDArray[np.uint32]]:
        """Blocks of rows, uint32 [some, most]: of the documents that ``way`` (see `packed`) says of ``numbers``."""
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
        """Take them off the disk."""
        self._file.close()
