"""The line at the foot of a running command: what the run does now, how far it is, how long it still takes.

What fits a terminal is decided here. Step, total and time left are the last to go; what was saved is the first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .events.story import Story

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_GAP = 2
_BAR, _SHORT_BAR = 24, 10
_WORDS = 30
"""Columns of a long sentence about what the run does that numbers have to leave; it takes whatever else is free."""
_FEWEST_LETTERS = 8


@dataclass(frozen=True)
class Line:
    """What of a story is shown: ``words`` (maybe cut), a bar of ``bar`` columns (0: none), then ``numbers``."""

    words: str
    bar: int
    numbers: tuple[str, ...]

    @property
    def width(self) -> int:
        """Columns that it takes."""
        parts = [len(self.words), *([self.bar] if self.bar else []), *map(len, self.numbers)]
        return sum(parts) + _GAP * (len(parts) - 1)


def fitted(story: Story, width: int) -> Line:
    """The line of a story for so many columns."""
    words, count, left = story.headline(), story.count(), story.left_text()
    loss, speed, saved = story.loss_text(), story.speed_text(), story.saved_text()
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
        made = Line(short, bar if story.steps else 0, tuple(one for one in numbers if one))
        if made.width <= width:
            break
    room = max(len(short) + width - made.width, _FEWEST_LETTERS)
    return replace(made, words=words if len(words) <= room else words[: room - 1] + "…")


class Bar:
    """The line of a story, as rich draws it: anew, to the terminal's width of the moment."""

    def __init__(self, story: Story) -> None:
        from rich.spinner import Spinner

        self._story = story
        self._spinner = Spinner("dots")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Rich's way to ask."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        story = self._story
        line = fitted(story, max(20, options.max_width - 2))
        grid = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
        cells = [Text(line.words, no_wrap=True)]
        grid.add_column(no_wrap=True)
        if line.bar:
            grid.add_column(width=line.bar)
        for _ in line.numbers:
            grid.add_column(no_wrap=True)
        bar = [ProgressBar(total=story.steps, completed=story.step, width=line.bar)] if line.bar else []
        grid.add_row(*cells, *bar, *(Text(one) for one in line.numbers))
        whole = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
        whole.add_row("" if story.ended else self._spinner, grid)
        yield whole
