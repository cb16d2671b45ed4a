"""How long a run stands still: from kill -9 of a node to the next committed step, and when a node joins.

    python -m benchmarks.recovery [--times N] [--nodes N] [--output FILE]
    python -m benchmarks.recovery --join [--times N] [--output FILE]    what others lose meanwhile

Real processes on this machine (tests/support/farm.py) at the default settings, in ``gradient`` mode, where a step needs
everybody. Seconds are between the coordinator's own events, beyond the time that a step takes anyway.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from farm import Farm, Nursery

BALLAST = 12_000_000
"""Parameters of the model of a join."""


def gap(farm: Farm, view: int, since: float | None = None) -> float:
    """Seconds to the first step of a view: since then, or since the last step before it."""
    steps = farm.events("step")
    first = next(event for event in steps if event["view"] == view)
    before = max(event["time"] for event in steps if event["step"] < first["step"])
    return float(first["time"] - (before if since is None else since))


def measure(farm: Farm, nodes: int, times: int) -> dict[str, Any]:
    """Kill a node and let it come back, ``times`` times."""
    farm.coordinator()
    names = [f"n{number}" for number in range(nodes)]
    running = {name: farm.node(name) for name in names}
    farm.trains(*names, steps=20)
    killed, joined = [], []
    for number in range(times):
        name = names[number % nodes]
        when = time.time()
        running[name].kill()
        farm.trains(*(other for other in names if other != name), steps=10)
        killed.append(gap(farm, farm.view()["view"], when))
        running[name] = farm.node(name)
        farm.trains(*names, steps=10)
        joined.append(gap(farm, farm.view()["view"]))
    step = median(event["seconds"] for event in farm.events("step"))
    return {
        "nodes": nodes,
        "step_s": round(step, 3),
        "killed_beyond_a_step_s": sorted(round(one - step, 3) for one in killed),
        "killed_median_s": round(median(killed) - step, 3),
        "joined_beyond_a_step_s": sorted(round(one - step, 3) for one in joined),
        "joined_median_s": round(median(joined) - step, 3),
    }


def steps_of(farm: Farm, view: int) -> list[float]:
    """Seconds between the steps of a view."""
    times = [event["time"] for event in farm.events("step") if event["view"] == view]
    return [after - before for before, after in pairwise(times)]


def measure_join(farm: Farm, times: int) -> dict[str, Any]:
    """Two nodes train with compressed rounds; a third comes over a link of 100 Mbit/s, ``times`` times."""
    farm.coordinator()
    running = {**farm.nodes("ab", through=True), "c": farm.node("c")}
    farm.trains("a", "b", "c", steps=3)
    for cable in farm.cables.values():
        cable.rate = 100e6 / 8
    ratios, seconds, gaps, usual = [], [], [], []
    for _ in range(times):
        running["c"].kill()
        if "c" in farm.cables:
            farm.cables.pop("c").close()
        farm.trains("a", "b", steps=30)
        before = median(steps_of(farm, farm.view()["view"])[5:])
        running["c"] = farm.node("c", through=True)
        farm.cables["c"].rate = 100e6 / 8
        farm.wait(lambda: "c" in farm.view()["spares"], "it follows as a spare")
        view, since = farm.view()["view"], time.time()
        farm.trains("a", "b", "c", steps=3)
        begun = next(event["time"] for event in farm.events("view") if event["view"] > view)
        ratios.append(median(steps_of(farm, view)) / before)
        usual.append(before)
        seconds.append(begun - since)
        gaps += [gap(farm, number) / before for number in (view, farm.view()["view"])]
    return {
        "megabytes": round(4 * BALLAST / 1e6, 1),
        "step_s": round(median(usual), 3),
        "fetching_s": [round(one, 1) for one in seconds],
        "step_while_fetching_over_before": [round(one, 3) for one in ratios],
        "median": round(median(ratios), 3),
        "view_changes_in_steps": [round(one, 2) for one in gaps],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--join", action="store_true")
    wanted = parser.parse_args()
    shape = {"pipelines": wanted.nodes}
    more: dict[str, Any] = {}
    if wanted.join:
        updates = {"mode": "delta", "codec": "cocktail:random=0.1,top=0.2,bits=4", "overlap": 1, "dense_rounds": 0}
        more = {"pace": 0.05, "ballast": BALLAST, "updates": updates, "checkpoint": {"every": 0}}
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(Nursery()) as nursery,
        Farm(Path(folder) / "run", nursery, parallel=shape, **more) as farm,
    ):
        result = measure_join(farm, wanted.times) if wanted.join else measure(farm, wanted.nodes, wanted.times)
    result = {"load": [round(one, 1) for one in os.getloadavg()], "cores": os.cpu_count(), **result}
    text = json.dumps(result, indent=1)
    print(text)
    if wanted.output is not None:
        wanted.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
