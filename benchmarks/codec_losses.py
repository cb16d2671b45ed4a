"""Writes scheduler/workloads/losses.json, the costs in loss that advice and plans tell, from results of runs.

    python -m benchmarks.codec_losses                    of `benchmarks.quality updates` (docs/quality.md)
    python -m benchmarks.codec_losses --size 1m          of `benchmarks.equal_loss run --size 1m`, where it has run

Each setting is compared with one optimiser on the whole batch, seed by seed; where two settings have the same mode,
interval and codec (other overlap, or other dense rounds) the first of the bench counts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from .equal_loss import T_95

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


def of_equal_loss(size: str) -> Iterator[dict[str, Any]]:
    from .equal_loss import SEEDS, rows
    from .equal_loss_methods import BASELINE, METHODS

    own = [one for one in rows() if one["size"] == size and one["seed"] in SEEDS]
    base = {one["seed"]: one["loss"] for one in own if one["method"] == BASELINE}
    for name, method in METHODS.items():
        runs = [one for one in own if one["method"] == name]
        if runs and base and not method.train and method.remedy is None and name != BASELINE:
            losses = {one["seed"]: one["loss"] for one in runs}
            yield row(method.updates, losses, base, runs[0]["parameters"], runs[0]["steps"], runs[0]["command"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", help="of benchmarks.equal_loss, instead of benchmarks.quality")
    options = parser.parse_args()
    table: dict[tuple[str, int, str], dict[str, Any]] = {}
    for one in of_equal_loss(options.size) if options.size else of_quality():
        table.setdefault((one["mode"], one["every"], one["codec"]), one)
    if not table:
        raise SystemExit("no result has another seed than that of the learning rates: run the bench first")
    OUT.write_text("[\n" + ",\n".join(json.dumps(one) for one in table.values()) + "\n]\n")
    print(f"{OUT}: {len(table)} settings")


if __name__ == "__main__":
    main()
