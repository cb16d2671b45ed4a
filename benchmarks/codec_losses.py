"""Writes scheduler/workloads/losses.json, the costs in loss that advice and plans tell, from results of runs.

    python -m benchmarks.codec_losses                    of `benchmarks.quality updates` (docs/quality.md)
    python -m benchmarks.codec_losses --size 1m          of `benchmarks.equal_loss run --size 1m`, where it has run with
                                                         all seeds; of quality the modes of which it has no codec
    python -m benchmarks.codec_losses --size byte --run  before, runs the settings of advice that have not run
    --text T   of the lines of this text, else of the first that has any: losses on two texts do not compare

Each setting is compared with one optimiser on the whole batch, seed by seed; where two settings have the same mode,
interval and codec (other overlap, fragments or dense rounds) the first of the bench counts. Settings with an outer
momentum are not in the table: advice names none.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from farflung.cli.advice import FIFTHS, RARE
from farflung.scheduler.workloads.ladder import ladder

from .equal_loss import Bench, run, tune
from .equal_loss_lines import SEEDS, SIZES, T_95, best_rate, rows
from .equal_loss_methods import BASELINE, FIFTH, METHODS, Method

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "scheduler" / "workloads" / "losses.json"


def row(
    updates: dict[str, Any], losses: dict[int, float], base: dict[int, float], parameters: int, steps: int, command: str
) -> dict[str, Any]:
    """A row of the table from the losses by seed of a setting and of the baseline."""
    more = [100 * (loss / base[seed] - 1) for seed, loss in losses.items() if seed in base]
    half = T_95[len(more)] * stdev(more) / len(more) ** 0.5 if len(more) > 1 else None
    return {
        "mode": updates.get("mode", "delta"),
        "every": updates.get("every", 1),
        "codec": updates.get("codec", "none"),
        "percent": round(mean(more), 3),
        "interval": None if half is None else round(half, 3),
        "seeds": len(more),
        "parameters": parameters,
        "steps": steps,
        "command": command,
    }


def of_quality() -> Iterator[dict[str, Any]]:
    from .quality import RESULTS, UPDATES

    found = json.loads(RESULTS.read_text())["updates"]
    base = {int(seed): run["loss"] for seed, run in found["gradient, none"].items()}
    for name, updates in UPDATES.items():
        if runs := found.get(name):
            losses, first = {int(seed): run["loss"] for seed, run in runs.items()}, next(iter(runs.values()))
            command = "python -m benchmarks.quality updates"
            yield row(updates, losses, base, first["parameters"], first["steps"], command)


def of_equal_loss(size: str, text: str | None) -> Iterator[dict[str, Any]]:
    lines = rows(size, text, SIZES[size].steps)
    own = [one for one in lines if one["steps"] == SIZES[size].steps and one["seed"] in SEEDS]
    base = {one["seed"]: one["loss"] for one in own if one["method"] == BASELINE}
    for name, method in {**ladders(), **METHODS}.items():
        rate = best_rate(lines, name, SIZES[size].steps)
        runs = [one for one in own if (one["method"], one["rate"]) == (name, rate)]
        plain = not method.train and method.remedy is None and "outer" not in method.updates
        if len(runs) == len(SEEDS) == len(base) and plain:
            losses = {one["seed"]: one["loss"] for one in runs}
            yield row(method.updates, losses, base, runs[0]["parameters"], runs[0]["steps"], runs[0]["command"])


def ladders() -> dict[str, Method]:
    """The modes, intervals and codecs that advice chooses among, as methods of equal_loss."""
    found = {}
    for mode, every in (("delta", 1), ("gradient", 1), ("delta", FIFTHS), ("delta", RARE)):
        for codec in ladder(mode, every):
            overlap = 1 if mode == "delta" else 0
            turns = {"fragments": FIFTHS, "block": FIFTH} if every == FIFTHS else {}
            method = Method({"mode": mode, "every": every, "codec": codec, "overlap": overlap, **turns})
            found[f"ladder: {mode}, every {every}, {codec}"] = method
    return found


class LadderBench(Bench):
    """Runs that this module begins."""

    def command(self, method: str, steps: int) -> str:
        if method == BASELINE:
            return super().command(method, steps)
        return f"python -m benchmarks.codec_losses --size {self.name} --run --only '^{re.escape(method)}$'"


def run_ladders(size: str, only: str, minutes: float) -> None:
    """The settings that have not run: the grid of learning rates on the seed for that, then the other seeds."""
    wanted = {name: method for name, method in ladders().items() if re.search(only, name)}
    METHODS.update(wanted)  # where the bench finds them
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        bench = LadderBench(size, Path(folder), "cpu", minutes)
        for name in (BASELINE, *wanted):
            tune(bench, bench.size.steps, f"^{re.escape(name)}$", ())
            run(bench, bench.size.steps, f"^{re.escape(name)}$")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", help="of benchmarks.equal_loss, before benchmarks.quality")
    parser.add_argument("--text", help="of benchmarks.equal_loss: the text whose lines count")
    parser.add_argument("--run", action="store_true", help="run what has not run yet")
    parser.add_argument("--only", default="", help="run: settings whose name matches this regular expression")
    parser.add_argument("--minutes", type=float, default=math.inf, help="run: begin no run after that")
    options = parser.parse_args()
    if options.run:
        run_ladders(options.size, options.only, options.minutes)
    table: dict[tuple[str, int, str], dict[str, Any]] = {}
    for one in of_equal_loss(options.size, options.text) if options.size else ():
        table.setdefault((one["mode"], one["every"], one["codec"]), one)
    # Percentages of two benches do not compare: of each mode and interval, codecs are of one.
    done = {(mode, every) for mode, every, codec in table if codec != "none"}
    for one in of_quality():
        if (one["mode"], one["every"]) not in done:
            table.setdefault((one["mode"], one["every"], one["codec"]), one)
    if not table:
        raise SystemExit("no result has another seed than that of the learning rates: run the bench first")
    OUT.write_text("[\n" + ",\n".join(json.dumps(one) for one in table.values()) + "\n]\n")
    print(f"{OUT}: {len(table)} settings")


if __name__ == "__main__":
    main()
