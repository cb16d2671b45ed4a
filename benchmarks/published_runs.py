"""Runs over the internet that others published, predicted by the scheduler: how much of the time machines compute.

    python -m benchmarks.published_runs [--json]

Each site is one node, as fast as its cards together, and holds the whole model. The seconds between two rounds are the
published ones, so that what is predicted is the round: from the model's size, the codec's bits, the pattern and the
slowest and the fastest line that a publication names.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from typing import Any

import numpy

from farflung.scheduler import Device, Layer, Network, Plan, Workload, predict


@dataclass(frozen=True)
class Run:
    """One run. compute_s: seconds of the `every` steps between two rounds. bits: for each parameter. lines: (up, down)
    bit/s of a site, the slowest and the fastest. latency: seconds one way (not published: usual ones). round_s,
    computing: as published, the latter in percent of the time."""

    name: str
    source: str
    sites: int
    parameters: float
    every: int
    compute_s: float
    bits: float
    pattern: str
    lines: tuple[tuple[float, float], tuple[float, float]]
    latency: float
    round_s: float
    computing: float


_INTELLECT = Run(
    "INTELLECT-1, USA", "arXiv:2412.01152", 14, 10.2e9, 100, 38 * 60, 8.0, "ring", ((500e6, 500e6), (4e9, 4e9)), 0.03,
    103, 95.7,
)  # fmt: skip
RUNS = (
    Run(
        "OpenDiLoCo, 4 sites on 2 continents", "arXiv:2407.07852", 4, 1.1e9, 500, 67.5 * 60, 16.0, "publishers",
        ((127e6, 127e6), (935e6, 935e6)), 0.05, 300, 93.1,
    ),
    _INTELLECT,
    replace(_INTELLECT, name="INTELLECT-1, USA and Europe", latency=0.06, round_s=382, computing=85.6),
    replace(_INTELLECT, name="INTELLECT-1, three continents", latency=0.1, round_s=469, computing=83.0),
    Run(
        "Covenant-72B", "arXiv:2603.08163", 17, 72.7e9, 30, 20 * 60, 14 / 64, "publishers",
        ((110e6, 500e6), (110e6, 500e6)), 0.05, 70, 94.5,
    ),
)  # fmt: skip


def predicted(run: Run, line: tuple[float, float]) -> tuple[float, float]:
    """(seconds of a round, percent of the time in which sites compute) with one line (up, down) everywhere."""
    up, down = line
    names = [f"site-{at}" for at in range(run.sites)]
    devices = [Device(name, name, tflops=1.0, upload=up, download=down) for name in names]
    size = (run.sites, run.sites)
    network = Network(devices, numpy.full(size, run.latency), numpy.full(size, min(up, down)))
    forward = run.compute_s / run.every * 1e12 / 3  # a backward takes two forwards
    layer = Layer("model", int(run.parameters), forward, 1)
    workload = Workload(
        (layer,), batch=run.sites, mode="delta", every=run.every, pattern=run.pattern, update_bits=run.bits
    )
    plan = Plan(tuple((name,) for name in names), ((0, 0),), (1,) * run.sites)
    told = predict(network, workload, plan)
    return told.round_s, 100 * (1 - told.bubble)


def rows() -> list[dict[str, Any]]:
    """A run each: what was published, and what the scheduler says for the slowest and the fastest line."""
    found = []
    for run in RUNS:
        both = [predicted(run, line) for line in run.lines]
        found.append(
            {
                "run": run.name,
                "source": run.source,
                "published": {"round_s": run.round_s, "computing": run.computing},
                "slowest_line": {"round_s": round(both[0][0], 1), "computing": round(both[0][1], 1)},
                "fastest_line": {"round_s": round(both[1][0], 1), "computing": round(both[1][1], 1)},
            }
        )
    return found


def main() -> None:
    """Prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    if parser.parse_args().json:
        print(json.dumps(rows(), indent=1))
        return
    print("| run | round, published | slowest to fastest line | computing, published | predicted |")
    print("| --- | --- | --- | --- | --- |")
    for row in rows():
        slow, fast, said = row["slowest_line"], row["fastest_line"], row["published"]
        print(
            f"| {row['run']} ({row['source']}) | {said['round_s']} s | {slow['round_s']} to {fast['round_s']} s "
            f"| {said['computing']} % | {slow['computing']} to {fast['computing']} % |"
        )


if __name__ == "__main__":
    main()
