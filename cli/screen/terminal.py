"""The screen of a running command: JSON lines, plain lines in a pipe, or a plan table and a progress bar.

``screen(output)`` picks one of the three; each takes events (INTERFACE's ``event`` objects) with ``show``.
"""

from __future__ import annotations

import contextlib
import re
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from ...coordinator.observe.savings import compared
from ...proto.words.border import harmless_values
from .events.event import Event
from .events.run_summary import RunSummary
from .events.sentences import advice_lines, sentence
from .events.view_lines import plan_notes, stage_text, view_text
from .output import Output

if TYPE_CHECKING:
    from rich.table import Table

_QUIET_SECONDS = 5.0
"""In a pipe, at most one step in this many seconds is written, so that the log stays readable."""


class Screen(Protocol):
    """Something that shows events until it is closed."""

    summary: RunSummary

    def show(self, event: Event) -> None:
        """Show one event."""

    def close(self) -> None:
        """Leave the terminal as it was."""

    def __enter__(self) -> Screen: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def screen(output: Output) -> Screen:
    """The screen that fits the output: JSON, a person at a terminal, or a pipe."""
    if output.json:
        return JsonScreen(output)
    return RichScreen(output) if output.rich else PlainScreen(output)


class _Screen:
    """The common part of the three screens."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.summary = RunSummary()

    def close(self) -> None:
        """Nothing to put back."""

    def __enter__(self) -> Screen:
        return self  # type: ignore[return-value]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class JsonScreen(_Screen):
    """One object a line."""

    def show(self, event: Event) -> None:
        """Write the event as it is."""
        self.summary.add(event)
        self.output.event(event)


class PlainScreen(_Screen):
    """Plain lines: everything that happens, and a step every few seconds."""

    def __init__(self, output: Output, clock: Any = time.monotonic) -> None:
        super().__init__(output)
        self._clock = clock
        self._last_step = -_QUIET_SECONDS
        self._last_notice = self._last_advice = ""

    def show(self, event: Event) -> None:
        """Write the event's sentence; warnings and errors go to stderr."""
        self.summary.add(event)
        kind = event.get("event")
        if kind == "step":
            now = self._clock()
            if now - self._last_step < _QUIET_SECONDS and self.summary.step != self.summary.steps:
                return
            self._last_step = now
            saving = self.summary.savings.text()
            of = f" of {self.summary.steps}" if self.summary.steps else ""
            line = sentence(event).replace(f"step {event.get('step')}:", f"step {event.get('step')}{of}:", 1)
            self.output.say(line + (f", {saving}" if saving else ""))
        elif kind in ("warning", "error"):
            self.output.note(sentence(event), str(kind))
        elif kind == "progress":
            now = self._clock()
            if now - self._last_step >= _QUIET_SECONDS:
                self._last_step = now
                self.output.say(sentence(event))
        elif kind == "advice":
            line = sentence(event)
            if (kind_of := re.sub(r"[\d.]+", "", line)) != self._last_advice:  # a change of numbers alone is not shown
                self._last_advice = kind_of
                self.output.say(line)
        else:
            line = sentence(event)
            if kind == "notice":
                if line == self._last_notice:
                    return
                self._last_notice = line
            if line:
                self.output.say(line)
            if kind == "done" and self.summary.savings.text():
                self.output.say(bytes_line(self.summary))


class RichScreen(_Screen):
    """A person at a terminal: the plan as a table whenever it changes, one line (bar.py) below everything.

    At a node, its advice is below the bar.
    """

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        from rich.console import Console, Group
        from rich.live import Live
        from rich.text import Text

        from .bar import Bar

        self._console = Console(file=output.stdout, highlight=False)
        self._advice = Text(style="dim")
        self._live = Live(Group(Bar(self.summary), self._advice), console=self._console, transient=True)
        self._notice = ""
        self._live.start()

    def show(self, event: Event) -> None:
        """Print what happened above the bar, and move the bar."""
        from rich.markup import escape

        event = harmless_values(event)  # rich does not remove escape sequences
        self.summary.add(event)
        kind, line = event.get("event"), escape(sentence(event))
        if kind == "view":
            self._console.print(f"[bold]view {event.get('view')}[/]: {escape(view_text(event))}", soft_wrap=True)
            self._console.print(plan_table(event))
            for note in plan_notes(event):
                self._console.print(f"[dim]{escape(note)}[/]")
        elif kind == "joined":
            self._console.print(f"[green]+[/] {line}")
        elif kind == "left":
            self._console.print(f"[yellow]-[/] {line}")
        elif kind == "warning":
            self._console.print(f"[yellow]{line}[/]")
        elif kind == "error":
            self._console.print(f"[red]{line}[/]")
        elif kind == "done":
            self._finish(line)
        elif kind == "listening":
            self._console.print(line, soft_wrap=True)
        elif kind in ("eval", "evaluated", "checkpoint"):
            self._console.print(f"[dim]{line}[/]", soft_wrap=True)
        elif kind == "notice":
            if line != self._notice:  # the bar shows only a part of it, and only until the next step
                self._console.print(f"[dim]{line}[/]", soft_wrap=True)
            self._notice = line
        elif kind == "advice":
            self._advice.plain = "\n".join(advice_lines(event))
        elif line and kind not in ("step", "progress"):
            self._console.print(line, soft_wrap=True)

    def _finish(self, line: str) -> None:
        self._live.stop()
        self._console.print(f"[bold green]{line}[/]", soft_wrap=True)
        if self.summary.savings.text():
            self._console.print(bytes_line(self.summary))

    def close(self) -> None:
        """Take the bar away."""
        with contextlib.suppress(OSError):  # the terminal itself is gone
            self._live.stop()


def bytes_line(summary: RunSummary) -> str:
    """What compression saved over the whole run."""
    savings, words = summary.savings, []
    now, after = savings.text(), savings.schedule.after
    dense = bool(after) and now.startswith("compression")  # a short run ends before
    if dense:
        now = f"no round was compressed: that starts after round {after}"
    elif after:
        now += f" after round {after}"
    if (detail := savings.detail()) or savings.ratio:
        means = ("fewer bytes than fp16", "the bytes of fp16") if dense else ("fewer", "as many")
        whole = compared(savings.ratio, *means)
        words = [f"{whole} in the whole run, headers counted", *([detail] if detail else [])]
    return "; ".join([now, *words])


def plan_table(event: Event) -> Table:
    """The plan of a view: a row for each pipeline, a column for each stage."""
    from rich.markup import escape
    from rich.table import Table

    table = Table()
    stages = event.get("stages") or []
    table.add_column("pipeline")
    for number, stage in enumerate(stages):
        table.add_column(f"stage {number}: {stage_text(stage)}")
    for number, pipeline in enumerate(event.get("pipelines") or []):
        table.add_row(str(number), *(escape(str(name)) for name in pipeline))
    return table
