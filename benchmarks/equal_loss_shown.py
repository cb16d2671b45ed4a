"""What equal_loss knows, as tables and pictures."""

from __future__ import annotations

import math
import statistics
from typing import Any

from .equal_loss_lines import HERE, PIPELINES, SEEDS, SIZES, TUNED_ON, against, best_rate, interval, rows, shown
from .equal_loss_methods import BASELINE, METHODS

PICTURE = HERE.parent / "docs" / "equal-loss.svg"
LENGTHS = HERE.parent / "docs" / "equal-loss-lengths.svg"
FP16 = 2 * (PIPELINES - 1) / PIPELINES * 16
"""Bits a parameter and step that a node sends in a ring all-reduce in fp16."""


def found(lines: list[dict[str, Any]], steps: int, tuned: int | None = None) -> dict[str, list[dict[str, Any]]]:
    """Of the lines of one size and text those of each method that count: its best rate, the seeds of the table."""
    out: dict[str, list[dict[str, Any]]] = {}
    for method in METHODS:
        rate = best_rate(lines, method, steps, tuned)
        for row in lines:
            if (row["method"], row["steps"], row["rate"]) == (method, steps, rate) and row["seed"] in SEEDS:
                out.setdefault(method, []).append(row)
    return out


def table(size: str, steps: int, text: str | None, tuned: int | None = None) -> None:
    """A claim without an interval is none: a method of one seed has a dash there."""
    of_text = rows(size, text, steps)
    known = found(of_text, steps, tuned)
    tokens = SIZES[size].batch * SIZES[size].context * steps
    print(f"\n{size}, {steps} steps, {tokens:,} tokens of text {of_text[0]['text'] if of_text else '-'}\n")
    print("| method | learning rate | seeds | validation loss | against one optimiser | bits | of fp16's bytes |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for method, lines in known.items():
        losses = [row["loss"] for row in lines]
        more, half = against(lines, known.get(BASELINE, []))
        compared = "-" if math.isnan(more) else f"{more:+.2f} ± {shown(half, 2)} %"
        bits = statistics.mean(row["bits"] for row in lines)
        sent = f"{bits:.3f} | 1/{FP16 / bits:.3g}" if bits else " | "
        mean = f"{statistics.mean(losses):.4f} ± {shown(interval(losses), 4)}"
        print(f"| {method} | {lines[0]['rate']:g} | {len(lines)} | {mean} | {compared} | {sent} |")


def tried(size: str, steps: int, text: str | None) -> None:
    """What is known of each method on the seed of tuning, which no claim rests on."""
    runs: dict[str, dict[float, dict[str, Any]]] = {}
    for row in rows(size, text, steps):
        if (row["steps"], row["seed"]) == (steps, TUNED_ON) and row["method"] in METHODS:
            runs.setdefault(row["method"], {})[row["rate"]] = row
    grid = SIZES[size].grid
    print(f"| method | bits | {' | '.join(f'at {rate:g}' for rate in grid)} |")
    print(f"| --- | --- |{' --- |' * len(grid)}")
    for method, of in sorted(runs.items(), key=lambda item: list(METHODS).index(item[0])):
        losses = " | ".join(f"{of[rate]['loss']:.4f}" if rate in of else "" for rate in grid)
        print(f"| {method} | {next(iter(of.values()))['bits']:.3f} | {losses} |")


def lengths(size: str, text: str | None) -> None:
    """What the methods that ran at several lengths lose on the seed of tuning, beside one optimiser with the same rate
    and length. No method has its rate tuned at each length, so the columns are no claim."""
    runs: dict[str, dict[tuple[float, int], float]] = {}
    for row in rows(size, text):
        if row["seed"] == TUNED_ON and row["method"] in METHODS:
            runs.setdefault(row["method"], {})[row["rate"], row["steps"]] = row["loss"]
    base = runs.get(BASELINE, {})
    columns = sorted({steps for (_, steps) in base})
    print(f"| method | learning rate | {' | '.join(f'{steps:,} steps' for steps in columns)} |")
    print(f"| --- | --- |{' --- |' * len(columns)}")
    for method, of in sorted(runs.items(), key=lambda item: list(METHODS).index(item[0])):
        for rate in sorted({rate for rate, _ in of}):
            if sum(key[0] == rate for key in of) < 2:
                continue
            cells = (_beside(of.get((rate, steps)), base.get((rate, steps))) for steps in columns)
            print(f"| {method} | {rate:g} | {' | '.join(cells)} |")


def _beside(loss: float | None, base: float | None) -> str:
    if loss is None:
        return ""
    return f"{loss:.4f}" if base in (None, loss) else f"{loss:.4f} ({100 * (loss / base - 1):+.1f} %)"


def gaps(lines: list[dict[str, Any]], tuned: int) -> dict[str, list[tuple[int, float, float]]]:
    """(steps, percentage above one optimiser of that length, half of its 95 % interval) of the methods that ran with
    all seeds at several lengths; up to ``tuned`` steps each at the rate of its length, then at that of ``tuned``."""
    out: dict[str, list[tuple[int, float, float]]] = {}
    for steps in sorted({row["steps"] for row in lines}):
        known = found(lines, steps, tuned if steps > tuned else None)
        for method, of in known.items():
            if method != BASELINE and len(of) == len(known.get(BASELINE, [])) == len(SEEDS):
                out.setdefault(method, []).append((steps, *against(of, known[BASELINE])))
    return {method: points for method, points in out.items() if len(points) > 1}


def lengths_picture(size: str, text: str | None, tuned: int) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4.5))
    for method, points in gaps(rows(size, text), tuned).items():
        steps, means, halves = zip(*points, strict=True)
        axes.errorbar(steps, means, halves, fmt="o-", capsize=3, label=method)
    axes.axhline(0, color="black", linewidth=0.8, linestyle=":")
    axes.set(xscale="log", xlabel="steps", ylabel="validation loss, % above one optimiser of that length")
    axes.set(title=f"{size}; whiskers: 95 %")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(LENGTHS, metadata={"Date": None})


def picture(size: str, steps: int, text: str | None) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5.5))
    for number, (method, lines) in enumerate(found(rows(size, text, steps), steps).items()):
        losses = [row["loss"] for row in lines]
        mean, half = statistics.mean(losses), interval(losses)
        color = "tab:red" if "muon" in method else "tab:blue"
        if method.startswith(BASELINE):
            axes.axhline(mean, color=color, linewidth=0.8, linestyle=":", label=method)
            continue
        bits = statistics.mean(row["bits"] for row in lines)
        axes.errorbar([bits], [mean], [0.0 if math.isnan(half) else half], fmt="o", capsize=3, color=color)
        axes.annotate(
            method, (bits, mean), xytext=(6, -11 if number % 2 else 3), textcoords="offset points", fontsize=8
        )
    axes.set(xscale="log", xlabel="bits a parameter and step that a node sends")
    axes.set(ylabel="validation loss, nats a token", title=f"{size}, {steps} steps; whiskers: 95 %")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Date": None})
