"""MuLoCo against DiLoCo at equal bytes: `examples/muloco.toml` and `examples/diloco.toml`, each at its best rate.

    python -m benchmarks.muloco            trains what is missing, then prints the table; --table prints alone,
                                           --picture draws docs/muloco.svg: loss against the bytes sent so far

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

from .equal_loss_lines import T_95
from .quality import HERE, JOB, prepared, shape_of, train

RESULTS = HERE / "results" / "muloco.json"
PICTURE = HERE.parent / "docs" / "muloco.svg"
RATES = (4e-3, 8e-3, 1.6e-2, 3.2e-2)
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


def found() -> dict[str, tuple[float, list[dict[str, Any]]]]:
    """{job: (its best rate, its runs at that rate)}, of the seeds that both jobs have been trained with; empty while
    these are too few for an interval."""
    runs = {name: (rate, {seed: load().get(f"{name}, rate {rate:g}, seed {seed}") for seed in SEEDS})
            for name in JOBS if (rate := best(name))}  # fmt: skip
    both = [seed for seed in SEEDS if len(runs) == len(JOBS) and all(made[seed] for _, made in runs.values())]
    if len(both) < min(T_95):
        return {}
    return {name: (rate, [made[seed] or {} for seed in both]) for name, (rate, made) in runs.items()}


def table() -> None:
    """The table of both jobs, and the difference seed by seed."""
    if not (jobs := found()):
        return
    print("| job file | learning rate | seeds | validation loss, mean | update bytes a step |")
    print("| --- | --- | --- | --- | --- |")
    losses: dict[str, list[float]] = {}
    for name, (rate, runs) in jobs.items():
        losses[name] = [made["loss"] for made in runs]
        mean, half = interval(losses[name])
        size = statistics.mean(made["update_bytes"] / made["steps"] for made in runs)
        print(f"| {name} | {rate:g} | {len(runs)} | {mean:.4f} ± {half:.4f} | {size:,.0f} |")
    mean, half = interval([two - one for one, two in zip(losses["diloco"], losses["muloco"], strict=True)])
    print(f"\nmuloco - diloco, seed by seed: {mean:+.4f} ± {half:.4f} nats per byte")


def picture() -> None:
    """Both jobs' validation loss against the bytes of updates sent so far; the bands are 95 % intervals."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "muloco"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for name, (rate, runs) in found().items():
        steps = sorted(map(int, runs[0]["evals"]))
        sent = [statistics.mean(made["update_bytes"] / made["steps"] for made in runs) * step / 1e6 for step in steps]
        means, halves = zip(*(interval([made["evals"][str(step)] for made in runs]) for step in steps), strict=True)
        (line,) = axes.plot(sent, means, marker="o", markersize=3, label=f"{name}.toml, learning rate {rate:g}")
        low, high = zip(*((mean - half, mean + half) for mean, half in zip(means, halves, strict=True)), strict=True)
        axes.fill_between(sent, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel="bytes of updates sent so far, MB", ylabel="validation loss, nats a byte")
    axes.legend()
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--picture", action="store_true")
    arguments = parser.parse_args()
    if arguments.picture:
        return picture()
    if not arguments.table:
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
