"""MuLoCo against DiLoCo at equal bytes: `examples/muloco.toml` and `examples/diloco.toml`, each at its best rate.

    python -m benchmarks.muloco            trains what is missing, then prints the table; --table prints alone

Both jobs are as their files have them, but for the learning rate: each takes the best of RATES on the seed CHOOSES, and
then trains with the seeds SEEDS. Results are kept in benchmarks/results/muloco.json.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

import tomllib

from farflung.job.schema import Job

from .equal_loss import T_95
from .quality import HERE, JOB, prepared, shape_of, train

RESULTS = HERE / "results" / "muloco.json"
RATES = (4e-3, 8e-3, 1.6e-2)
CHOOSES, SEEDS = 10, (1, 2, 3)
JOBS = ("diloco", "muloco")


def load() -> dict[str, dict[str, Any]]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def run(name: str, rate: float, seed: int, folder: Path, text: list[str]) -> dict[str, Any]:
    """One run of a job file with another rate and seed, kept for the next call."""
    key = f"{name}, rate {rate:g}, seed {seed}"
    if key not in load():
        content = tomllib.loads(JOB.with_name(f"{name}.toml").read_text())
        content["data"]["text"], content["checkpoint"] = text, {"every": 0}
        content["run"]["seed"], content["train"]["learning_rate"] = seed, rate
        job = Job.model_validate(content)
        facts, artifacts = prepared(job, folder / "state")
        made = train(job, facts, artifacts, shape_of(job))
        RESULTS.write_text(json.dumps({**load(), key: made}, indent=1) + "\n")
        print(f"{key}: loss {made['loss']:.4f} in {made['seconds']:.0f} s", flush=True)
    return load()[key]


def best(name: str) -> float | None:
    """The rate with the least loss on the seed that chooses; None while a rate has not been tried."""
    tried = {rate: load().get(f"{name}, rate {rate:g}, seed {CHOOSES}") for rate in RATES}
    known = {rate: made["loss"] for rate, made in tried.items() if made is not None}
    return min(known, key=known.__getitem__) if len(known) == len(RATES) else None


def interval(values: list[float]) -> tuple[float, float]:
    """(mean, half of its 95 % interval)."""
    return statistics.mean(values), T_95[len(values)] * statistics.stdev(values) / math.sqrt(len(values))


def table() -> None:
    """The table of the seeds that both jobs have been trained with, and the difference seed by seed."""
    found = {name: (rate, [load().get(f"{name}, rate {rate:g}, seed {seed}") for seed in SEEDS])
             for name in JOBS if (rate := best(name))}  # fmt: skip
    both = [at for at in range(len(SEEDS)) if len(found) == len(JOBS) and all(runs[at] for _, runs in found.values())]
    if len(both) < min(T_95):
        return
    print("| job file | learning rate | seeds | validation loss, mean | update bytes a step |")
    print("| --- | --- | --- | --- | --- |")
    losses: dict[str, list[float]] = {}
    for name, (rate, runs) in found.items():
        losses[name] = [runs[at]["loss"] for at in both]
        mean, half = interval(losses[name])
        size = statistics.mean(runs[at]["update_bytes"] / runs[at]["steps"] for at in both)
        print(f"| {name} | {rate:g} | {len(both)} | {mean:.4f} ± {half:.4f} | {size:,.0f} |")
    mean, half = interval([two - one for one, two in zip(losses["diloco"], losses["muloco"], strict=True)])
    print(f"\nmuloco - diloco, seed by seed: {mean:+.4f} ± {half:.4f} nats per byte")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true")
    if not parser.parse_args().table:
        from farflung.examples.shakespeare import write_text

        with tempfile.TemporaryDirectory() as folder:
            text = [str(path) for path in write_text(Path(folder))]
            for rate in RATES:
                for name in JOBS:
                    run(name, rate, CHOOSES, Path(folder), text)
            for seed in SEEDS:
                for name in JOBS:
                    run(name, best(name) or RATES[0], seed, Path(folder), text)
    table()


if __name__ == "__main__":
    main()
