"""Training data in their original files of tokens or text: read when nodes ask for them, not copied to the coordinator.

The rows that nodes see are those of `data.tokenise`: windows of ``context + 1`` tokens, the training samples first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ....job.schema import Job
from ....proto.errors import JobError
from .streams import Stream, Texts

_SPAN = 16 << 20  # most bytes between the first and the last window of one read


@dataclass(frozen=True)
class Corpus:
    """The rows of a run's tokens: ``samples`` of training, then ``held`` of validation.

    ``training`` are the training files' tokens; ``validation`` those of held-out files, or None where ``held`` windows
    of ``training`` are held out, evenly spread.
    """

    training: Stream
    validation: Stream | None
    context: int
    samples: int
    held: int

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        return (self.samples + self.held) * self.row

    @property
    def row(self) -> int:
        """Bytes of a row."""
        return (self.context + 1) * np.dtype(self.training.dtype).itemsize

    @property
    def spread(self) -> int:
        """How many windows of ``training`` are held out."""
        return 0 if self.validation else self.held

    def read(self, offset: int, length: int) -> bytes:
        """Bytes [offset, offset + length) of the rows. SourceChanged: a file is gone or shorter than it was.
        SourceUnreachable: its storage does not answer."""
        first, last = offset // self.row, -(-(offset + length) // self.row)
        blocks = []
        for stream, windows in self._windows(first, last):
            for group in _groups(windows, self._span(stream)):
                start = group[0] * self.context
                tokens = stream.read(start, (group[-1] - group[0] + 1) * self.context + 1)
                rows = np.lib.stride_tricks.sliding_window_view(tokens, self.context + 1)[:: self.context]
                blocks.append(rows[np.array(group) - group[0]].tobytes())
        begin = offset - first * self.row
        return b"".join(blocks)[begin : begin + length]

    def _span(self, stream: Stream) -> int:
        return _SPAN // (self.context * np.dtype(stream.dtype).itemsize)

    def _windows(self, first: int, last: int) -> Iterator[tuple[Stream, list[int]]]:
        """(stream, numbers of windows in it, ascending) of the rows [first, last)."""
        kept = range(first, min(last, self.samples))
        held = range(max(first, self.samples) - self.samples, last - self.samples)
        spread = self.spread
        if kept:
            yield self.training, [kept_window(row, self.samples + spread, spread) for row in kept]
        if held and self.validation:
            yield self.validation, list(held)
        elif held:
            yield self.training, [held_window(row, self.samples + spread, spread) for row in held]

    def in_order(self, held: BinaryIO) -> Iterator[bytes]:
        """All rows of a corpus of texts, which are read once from the first token to the last. The windows of
        ``training`` that are held out are written to ``held`` meanwhile, and come last."""
        texts = [stream for stream in (self.training, self.validation) if isinstance(stream, Texts)]
        row, spread = 0, self.spread
        for stream in texts:
            number = 0
            for windows in _cut(stream.stream(0), self.context):
                kept = np.ones(len(windows), bool)
                while row < spread and (at := held_window(row, self.samples + spread, spread) - number) < len(windows):
                    kept[at] = False
                    row += 1
                held.write(windows[~kept].tobytes())
                yield windows[kept].tobytes()
                number += len(windows)
        held.seek(0)
        while block := held.read(_SPAN):
            yield block

    def names(self, offset: int, length: int) -> str:
        """The files that these bytes of the rows come from."""
        rows = self._windows(offset // self.row, -(-(offset + length) // self.row))
        return ", ".join(
            stream.names(min(windows) * self.context, (max(windows) - min(windows) + 1) * self.context + 1)
            for stream, windows in rows
        )


def held_window(row: int, windows: int, held: int) -> int:
    """The window of validation row ``row`` where ``held`` of ``windows`` are held out: as `data.split` spreads them."""
    return (2 * row + 1) * windows // (2 * held)


def kept_window(row: int, windows: int, held: int) -> int:
    """The window of training row ``row``: its number is ``row`` plus the number of held-out windows before it."""
    if not held:
        return row
    before = -(-(2 * held * (row + 1) - windows) // (2 * (windows - held)))
    return row + min(max(before, 0), held)


def corpus_of(job: Job, training: Stream, validation: Stream | None, context: int) -> Corpus:
    """The corpus over these streams, which hold the job's files. JobError: too few tokens for a training sample."""
    kind, patterns = job.data.source()
    windows = count_windows(training.tokens, context, kind, ", ".join(patterns))
    if validation:
        held = count_windows(validation.tokens, context, kind, ", ".join(job.data.held_out()))
        return Corpus(training, validation, context, windows, held)
    assert isinstance(job.data.validation, float)
    held = count_held(windows, job.data.validation)
    if held == windows:
        raise JobError(f"data.validation = {job.data.validation} leaves no training sample of {windows}", "lower it")
    return Corpus(training, None, context, windows - held, held)


def count_windows(tokens: int, context: int, kind: str, names: str) -> int:
    """The number of windows in ``tokens`` tokens. JobError: there is not a single one."""
    if tokens == 0:
        raise JobError(f"the text is empty: {names}", f"data.{kind} must name files with text in them")
    if tokens <= context:
        need = f"one sample of model.context = {context} needs {context + 1}"
        raise JobError(f"the text is too short: {tokens} tokens in {names}; {need}", "add text or lower the context")
    return (tokens - 1) // context


def count_held(windows: int, validation: float) -> int:
    """The number of windows that are held out: at least one if validation > 0 and there are two windows."""
    return max(round(windows * validation), int(validation > 0 and windows > 1))


def _cut(stream: Iterable[npt.NDArray[Any]], context: int) -> Iterator[npt.NDArray[Any]]:
    """The windows of a stream, in order: arrays [some, context + 1]."""
    waiting: list[npt.NDArray[Any]] = []
    count = 0
    for tokens in stream:
        waiting.append(tokens)
        count += len(tokens)
        if count > max(context, 1 << 16):
            joined = np.concatenate(waiting)
            windows = np.lib.stride_tricks.sliding_window_view(joined, context + 1)[::context]
            yield windows
            waiting = [joined[len(windows) * context :]]
            count = len(waiting[0])
    if count > context:
        yield np.lib.stride_tricks.sliding_window_view(np.concatenate(waiting), context + 1)[::context]


def _groups(windows: Sequence[int], span: int) -> Iterator[list[int]]:
    """Groups of ascending windows, such that no group spans more than ``span`` windows."""
    group: list[int] = []
    for window in windows:
        if group and window - group[0] >= max(span, 1):
            yield group
            group = []
        group.append(window)
    yield group
