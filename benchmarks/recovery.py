"""How long a run stands still: from kill -9 of a node to the next committed step, and when a node joins.

    python -m benchmarks.recovery [--times N] [--nodes N] [--output FILE]

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
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from farm import Farm, Nursery


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--output", type=Path)
    wanted = parser.parse_args()
    shape = {"pipelines": wanted.nodes}
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(Nursery()) as nursery,
        Farm(Path(folder) / "run", nursery, parallel=shape) as farm,
    ):
        result = measure(farm, wanted.nodes, wanted.times)
    result = {"load": [round(one, 1) for one in os.getloadavg()], "cores": os.cpu_count(), **result}
    text = json.dumps(result, indent=1)
    print(text)
    if wanted.output is not None:
        wanted.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
