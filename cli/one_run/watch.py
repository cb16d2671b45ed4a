"""``farflung status --watch``: the status again and again, as a screen at a terminal and as lines in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...proto.errors import FarflungError
from ..screen.output import Output
from ..screen.tables import rich_table
from ..screen.units import count_text, seconds_text
from .status import advice_of, headline, held_up, node_row, numbers, plan_lines

if TYPE_CHECKING:
    from rich.console import RenderableType

Record = Mapping[str, Any]
Ask = Callable[[], Record]
_OVER = ("done", "failed", "interrupted")


def watch(output: Output, ask: Ask, every: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """Show the status from ``ask`` every ``every`` seconds until the run is over or Ctrl-C is pressed.

    The first call must succeed; later calls that fail are repeated.
    """
    record = ask()
    if output.rich:
        from rich.console import Console
        from rich.live import Live

        with Live(screen_of(record), console=Console(file=output.stdout), auto_refresh=False) as live:
            for one, away in _again(record, ask, every, sleep):
                live.update(screen_of(one, away), refresh=True)
        return
    before = ""
    for one, away in _again(record, ask, every, sleep):
        if output.json:
            output.record(one)
        elif (line := away or line_of(one)) != before:
            before = line
            output.say(f"{time.strftime('%H:%M:%S')} {line}")


def _again(record: Record, ask: Ask, every: float, sleep: Callable[[float], None]) -> Any:
    """Yields (record, why there is no newer one or ""), the first one at once."""
    away = ""
    while True:
        yield record, away
        if over(record) and not away:
            return
        sleep(every)
        try:
            record, away = ask(), ""
        except FarflungError as error:
            away = f"{error.message}; what follows is the last that it said"


def over(record: Record) -> bool:
    """Whether the run or its coordinator has ended, so that nothing more will change."""
    return record.get("phase") in _OVER or not record.get("running")


def line_of(record: Record) -> str:
    """The status in one line."""
    parts = [headline(record)]
    if record.get("loss") is not None:
        parts.append(f"loss {record['loss']:.4f}")
    if record.get("tokens_per_second"):
        parts.append(f"{count_text(record['tokens_per_second'])} tokens/s")
    held = held_up(record)
    if record.get("phase") != "training":
        parts.append(str(record.get("why") or ""))
    elif held:
        parts.append(held)
    return ", ".join(part for part in parts if part)


def screen_of(record: Record, away: str = "") -> RenderableType:
    """The status as a screen: progress, numbers, the plan, and a row for each node with advice."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    now = float(record.get("time") or time.time())
    lines: list[RenderableType] = [Text(headline(record), style="bold")]
    if record.get("steps"):
        bar = ProgressBar(total=record["steps"], completed=record.get("step") or 0, width=48)
        lines.append(Padding(bar, 0))  # a bar alone does not end its line
    if away:
        lines.append(Text(away, style="yellow"))
    elif record.get("why"):
        lines.append(Text(str(record["why"]), style="dim"))
    lines += [Text(line) for line in numbers(record)]
    if record.get("step_s") and record.get("steps") and record.get("phase") == "training":
        left = (int(record["steps"]) - int(record["step"])) * float(record["step_s"])
        lines.append(Text(f"{seconds_text(left)} to go"))
    held = held_up(record)
    if held:
        lines.append(Text(held, style="red"))
    view = record.get("view")
    if view:
        lines += [Text(""), *(Text(line) for line in plan_lines(view))]
    present = [node for node in record.get("nodes") or () if node.get("in")]
    if present:
        rows = [(*node_row(node, now)[:4], advice_of(node)) for node in present]
        lines.append(rich_table(("node", "does", "device", "heard", "what would help"), rows))
    lines += [Text(f"warning: {one['message']}", style="yellow") for one in list(record.get("warnings") or ())[-3:]]
    return Group(*lines)
