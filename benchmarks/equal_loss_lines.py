"""The sizes of equal_loss, and its results: lines of one file, each of a size, a text, a method, a seed and a rate."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "equal_loss.jsonl"
PIPELINES = 4
TUNED_ON, SEEDS = 0, (1, 2, 3)
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t by number of seeds: a mean's interval of 95 % is +- t * deviation / sqrt(seeds)."""


@dataclass(frozen=True)
class Size:
    """A model. ``steps`` of ``batch`` samples; ``text``: MB, enough for each token to be read once; ``grid``: the
    learning rates that every method tries; ``looped``: computed by members.py, on bytes, not by trainers."""

    layers: int
    width: int
    context: int
    batch: int
    steps: int
    text: int
    autocast: bool = False
    grid: tuple[float, ...] = (1e-3, 2e-3, 4e-3, 8e-3)
    looped: bool = False
    family: str = "gpt2"


BYTE_GRID = (5e-3, 1e-2)
SIZES = {
    "tiny": Size(2, 32, 64, 16, 300, 4),
    "byte": Size(2, 64, 64, 16, 1000, 17, grid=BYTE_GRID, looped=True),
    "byte-llama": Size(2, 64, 64, 16, 1000, 17, grid=BYTE_GRID, looped=True, family="llama"),
    "1m": Size(4, 96, 128, 32, 4_000, 80),
    "5m": Size(6, 224, 256, 32, 8_000, 250),
    "25m": Size(8, 480, 512, 64, 10_000, 340, True),
    "124m": Size(12, 768, 1024, 64, 5_000, 340, True),
}


def rows(size: str, text: str | None = None, steps: int | None = None) -> list[dict[str, Any]]:
    """The lines of a size and one text: of ``text``, else of the first that has a line (of ``steps`` steps, if given),
    as losses on two texts do not compare."""
    if not RESULTS.exists():
        return []
    of_size = [row for row in map(json.loads, RESULTS.read_text().splitlines()) if row["size"] == size]
    texts = (row["text"] for row in of_size if steps in (None, row["steps"]))
    chosen = text or next(texts, None)
    return [row for row in of_size if row["text"] == chosen]


def best_rate(lines: list[dict[str, Any]], method: str, steps: int, tuned: int | None = None) -> float | None:
    """Of the grid, where all of it was tried on the seed for that with ``tuned`` steps, if given, else ``steps``;
    ``lines``: of one size and text."""
    steps = tuned or steps
    tried = {
        row["rate"]: row["loss"]
        for row in lines
        if (row["method"], row["steps"], row["seed"]) == (method, steps, TUNED_ON)
    }
    finite = {rate: loss for rate, loss in tried.items() if math.isfinite(loss)}
    whole = bool(finite) and len(tried) >= len(SIZES[lines[0]["size"]].grid)
    return min(finite, key=finite.__getitem__) if whole else None


def interval(losses: list[float]) -> float:
    """Half of the mean's 95 % interval; nan for one loss."""
    if len(losses) < 2:
        return math.nan
    return T_95[len(losses)] * statistics.stdev(losses) / math.sqrt(len(losses))


def against(lines: list[dict[str, Any]], base: list[dict[str, Any]]) -> tuple[float, float]:
    """(mean, half of its 95 % interval) of the percentage that a method loses against the baseline on the same seeds:
    the same samples in the same order from the same weights."""
    alone = {row["seed"]: row["loss"] for row in base}
    shares = [100 * (row["loss"] / alone[row["seed"]] - 1) for row in lines if row["seed"] in alone]
    return (statistics.mean(shares), interval(shares)) if shares else (math.nan, math.nan)


def shown(half: float, digits: int) -> str:
    return "-" if math.isnan(half) else f"{half:.{digits}f}"
