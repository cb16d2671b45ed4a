"""Tables for people: aligned columns in a pipe, colours and lines at a terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...proto.words.border import harmless
from .output import Output
from .units import count_text, seconds_text

if TYPE_CHECKING:
    from rich.table import Table


def table(output: Output, columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """Write a table. Cells are shown with ``str``; None is a dash. The last column is wrapped."""
    cells = [[_cell(cell) for cell in row] for row in rows]
    if output.rich:
        _rich(output, columns, cells, title)
        return
    if title:
        output.say(title)
    widths = [max(len(line[at]) for line in [list(columns), *cells]) for at in range(len(columns) - 1)]
    for line in [list(columns), *cells]:
        output.say(
            "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]).rstrip()
        )


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    return ("no", "yes")[value] if isinstance(value, bool) else harmless(str(value))


def _rich(output: Output, columns: Sequence[str], cells: list[list[str]], title: str) -> None:
    from rich.console import Console

    Console(file=output.stdout, highlight=False).print(rich_table(columns, cells, title))


def rich_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> Table:
    """The table for a terminal."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    made = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for at, column in enumerate(columns):
        made.add_column(column, overflow="fold", no_wrap=at == 0)
    for row in rows:
        made.add_row(*(escape(_cell(cell)) for cell in row))
    return made


def show_codecs(output: Output, rows: Sequence[dict[str, Any]]) -> None:
    """Every codec: its keys with their defaults, where it may be used, what it is."""
    table(
        output,
        ("codec", "bits a value", "keys", "for", "unbiased", "what it is"),
        [
            (row["codec"], _bits(row["bits"]), _keys(row), _places(row["roles"]), row["unbiased"], row["about"])
            for row in rows
        ],
    )
    output.say("\nA codec is written NAME or NAME:key=value,key=value. Its error: farflung codecs measure SPEC")


def _bits(bits: float | None) -> str:
    return "-" if bits is None else f"{bits:.3g}"


def _keys(row: dict[str, Any]) -> str:
    found = {name: parameter["default"] for name, parameter in row["parameters"].items()}
    return ", ".join(f"{name}={default}" for name, default in found.items() if default not in (False, "auto"))


def _places(roles: Sequence[str]) -> str:
    places = [("updates", {"update", "gradient"}), ("activations", {"activation", "activation_gradient"})]
    return ", ".join(name for name, needed in places if needed & set(roles))


def show_plan(output: Output, rows: Sequence[Sequence[str]], made: dict[str, Any]) -> None:
    """The plan of a cluster: pipelines as rows, then what to expect and why."""
    room = shutil.get_terminal_size((100, 24)).columns
    if output.rich and sum(max(len(row[at]) for row in rows) + 3 for at in range(len(rows[0]))) > room:
        _narrow(output, rows, room)  # columns would cut names in the middle
    else:
        table(output, rows[0], rows[1:])
    alike: dict[str, list[str]] = {}
    for name, why in made["spares"].items():
        alike.setdefault(why, []).append(name)
    for why, names in alike.items():
        more = f" and {len(names) - 12} more" if len(names) > 12 else ""
        output.say(f"spare{'s' if len(names) > 1 else ''}: {', '.join(names[:12])}{more}: {why}")
    output.say()
    predicted = made["predicted"]
    expected: dict[str, Any] = {
        "why": made["why"],
        "a step": seconds_text(float(predicted["step_s"])),
        "tokens/s": count_text(float(predicted["tokens_per_second"])),
        "tokens/day": count_text(float(made["tokens_per_day"])),
        "of which count": _counting(made),
        "idle": f"{float(predicted['bubble']):.1%} of the devices' time",
        "bottleneck": predicted["bottleneck"],
        "$/billion tokens": made["dollars_per_billion_tokens"],
        "all tokens": _finish(made.get("finish")),
        "instead": made.get("instead"),
        "codecs": ", ".join(f"{link} {codec}" for link, codec in made["codecs"].items() if codec != "none"),
        "schedule": made["schedule"],
        "searched": seconds_text(float(made["search_s"])),
        "picture": made.get("picture"),
    }
    show_record(output, {key: value for key, value in expected.items() if value})


def _narrow(output: Output, rows: Sequence[Sequence[str]], room: int) -> None:
    """The same, a paragraph for each pipeline."""
    for number, share, *nodes in rows[1:]:
        held = [f"{node} ({stage.partition(': ')[2]})" for node, stage in zip(nodes, rows[0][2:], strict=True)]
        text = f"pipeline {number}, {share}: " + " -> ".join(one.replace(" ", "\N{NO-BREAK SPACE}") for one in held)
        lines = textwrap.wrap(text, max(20, room), subsequent_indent="  ", break_long_words=False)
        output.say("\n".join(lines).replace("\N{NO-BREAK SPACE}", " "))


def _counting(made: dict[str, Any]) -> str:
    count = made.get("tokens_that_count_per_day")
    return f"{count_text(float(count))}, by train.critical_batch" if count is not None else ""


def _finish(found: dict[str, Any] | None) -> str:
    """When all tokens of a job are trained, and for how much."""
    if found is None:
        return ""
    dollars = "" if found["dollars"] is None else f", ${found['dollars']:,.2f}"
    return f"{count_text(float(found['tokens']))} in {found['days']:.3g} days{dollars}"


def show_measured(output: Output, record: dict[str, Any]) -> None:
    """The measured bits, error and speed of a codec, and what its error means for training."""
    show_record(output, record)
    output.say(
        "\nbits: of each value. nmse: a message's squared error, as a part of the values' own square. In training"
        "\nerror feedback makes up for it: what one message leaves out goes with later ones."
    )


def show_advice(output: Output, made: dict[str, Any]) -> None:
    """The possible codecs, the least lossy first, and the recommended one."""
    table(
        output,
        ("mode", "every", "codec", "bits a value", "error", "a round", "hides", "in loss"),
        [
            (
                row["mode"],
                row["every"],
                row["codec"],
                f"{row['bits']:.3g}",
                "-" if row["error"] is None else f"{row['error']:.2g}",
                seconds_text(row["round_seconds"]),
                "yes" if row["hides"] else "no",
                row["loss"],
            )
            for row in made["choices"]
        ],
    )
    output.say(f"\n{made['advice']}")


def show_record(output: Output, record: dict[str, Any]) -> None:
    """One object as ``key  value`` lines; numbers with six digits, long text wrapped to the terminal."""
    width = max(map(len, record), default=0)
    room = max(20, shutil.get_terminal_size((100, 24)).columns - width - 2)
    for key, value in record.items():
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        lines = textwrap.wrap(text, room) or ["-"]
        output.say(f"{key.ljust(width)}  {lines[0]}")
        for line in lines[1:]:
            output.say(" " * (width + 2) + line)
