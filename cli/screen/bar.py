"""The bottom line of a running command: what the run does now, its step, and the time left.

This file decides what fits into a terminal's width. The savings are left out first; the step, the total and the time
left are left out last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .events.run_summary import RunSummary

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_GAP = 2
_BAR, _SHORT_BAR = 24, 10
_WORDS = 30
"""Columns that the numbers leave for a sentence about what the run does; it also takes all other free columns."""
_FEWEST_LETTERS = 8


@dataclass(frozen=True)
class Line:
    """The parts of a summary that are shown: ``words`` (maybe cut), ``bar`` columns (0: none), then ``numbers``."""

    words: str
    bar: int
    numbers: tuple[str, ...]

    @property
    def width(self) -> int:
        """Columns that it takes."""
        parts = [len(self.words), *([self.bar] if self.bar else []), *map(len, self.numbers)]
        return sum(parts) + _GAP * (len(parts) - 1)


def fitted(summary: RunSummary, width: int) -> Line:
    """The line of a summary in at most ``width`` columns."""
    words, count, left = summary.headline(), summary.count(), summary.left_text()
    loss, speed, saved = summary.loss_text(), summary.speed_text(), summary.saved_text()
    short = words if len(words) <= _WORDS else "…" * _WORDS
    made = Line(short, 0, ())
    for bar, numbers in (
        (_BAR, (count, loss, speed, saved, left)),
        (_SHORT_BAR, (count, loss, speed, saved, left)),
        (_BAR, (count, loss, speed, left)),
        (_SHORT_BAR, (count, loss, speed, left)),
        (_SHORT_BAR, (count, loss, left)),
        (0, (count, loss, left)),
        (0, (count, left)),
    ):
        made = Line(short, bar if summary.steps else 0, tuple(one for one in numbers if one))
        if made.width <= width:
            break
    room = max(len(short) + width - made.width, _FEWEST_LETTERS)
    return replace(made, words=words if len(words) <= room else words[: room - 1] + "…")


class Bar:
    """The line of a summary, drawn by rich to the terminal's present width."""

    def __init__(self, summary: RunSummary) -> None:
        from rich.spinner import Spinner

        self._summary = summary
        self._spinner = Spinner("dots")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich to draw the object."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        summary = self._summary
        line = fitted(summary, max(20, options.max_width - 2))
        grid = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
        cells = [Text(line.words, no_wrap=True)]
        grid.add_column(no_wrap=True)
        if line.bar:
            grid.add_column(width=line.bar)
        for _ in line.numbers:
            grid.add_column(no_wrap=True)
        bar = [ProgressBar(total=summary.steps, completed=summary.step, width=line.bar)] if line.bar else []
        grid.add_row(*cells, *bar, *(Text(one) for one in line.numbers))
        whole = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
        whole.add_row("" if summary.ended else self._spinner, grid)
        yield whole
