"""How long a run stands still: from kill -9 of a node to the next committed step, and when a node joins.

    python -m benchmarks.recovery [--times N] [--nodes N]
    python -m benchmarks.recovery --worldwide [--times N] [--nodes N]    the same over the WAN of that name; needs root
    python -m benchmarks.recovery --join [--times N]      what others lose while a joiner fetches its state

Real processes on this machine (tests/support/farm.py) at the default settings, in ``gradient`` mode, where a step needs
everybody. Seconds are between the coordinator's own events, beyond the time that a step takes anyway.

A joiner has a link of its own, slow enough that the fetch takes dozens of steps, and is a machine of its own: its
processes have niceness 19 until it has a place, so that they take next to nothing of the cores of the two that train.
What counts is the median of the steps in the view that it spends as a spare, against that of the view before. The
results, in benchmarks/results, are saved after each time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from farflung.deploy.wan import build, files, lab, lateness
from farflung.deploy.wan.lab import Lab

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from farm import Farm, Nursery, Process

RESULTS = Path(__file__).parent / "results"
JOIN_UPDATES = {"mode": "delta", "codec": "cocktail:random=0.1,top=0.2,bits=4", "overlap": 1, "dense_rounds": 0}
BALLAST = 12_000_000
"""Parameters of the model of a join."""
JOINER_BITS = 15e6
"""A second that get through to a joiner."""
BEFORE = 40
"""Steps that are timed before it comes."""
Save = Callable[[dict[str, Any]], None]


class WanFarm(Farm):
    """A farm whose coordinator and nodes are in hosts of a WAN of their own."""

    def __init__(self, made: Lab, nodes: int, folder: Path, nursery: Nursery, **more: Any) -> None:
        super().__init__(folder, nursery, **more)
        self.made = made
        hosts = range(len(made.topology.hosts))
        self.hosts = {f"n{number}": hosts[number * len(hosts) // nodes] for number in range(nodes)}

    def coordinator(self, *words: str, wait: bool = True, **environment: str) -> Process:
        home = self.made.topology.index(self.made.topology.coordinator)
        address = f"{self.made.topology.address(home)}:7070"
        start = ["coordinator", "start", "job.toml", "--state", "state", "--listen", address, "--advertise", address]
        self.current = self._inside(home, "coordinator", [*start, *words], environment)
        if wait:
            self.wait(lambda: self.c.of("listening"), "the coordinator listens")
        return self.current

    def node(self, name: str, *words: str, through: bool = False, allow: bool = True, **environment: str) -> Process:
        join = ["join", self.link, "--name", name, "--cache", f"cache-{name}", "--device", "cpu"]
        return self._inside(self.hosts[name], name, [*join, "--allow-code", "paced", *words], environment)

    def _inside(self, host: int, name: str, words: list[str], environment: dict[str, str]) -> Process:
        """`wan exec` becomes the command: signals are its own."""
        inside = ["wan", "exec", self.made.name, self.made.topology.hosts[host].name, "--"]
        command = [*inside, sys.executable, "-m", "farflung", *words, "--lifeline"]
        return Process(self, name, command, **environment)


@contextlib.contextmanager
def worldwide(folder: Path, nursery: Nursery, nodes: int) -> Iterator[WanFarm]:
    """A farm on the WAN `worldwide`, built and taken down. Says where the emulator did not keep up."""
    made = build.up(files.prepare("worldwide", name=f"recovery{os.getpid()}"), None)
    try:
        before = made.stat()
        with WanFarm(made, nodes, folder, nursery, parallel={"pipelines": nodes}) as farm:
            yield farm
        late = lab.late_between(before, made.stat())
        if late is not None:
            print(lateness.verdict(late, made.topology.smallest_delay_ms())[1], file=sys.stderr)
    finally:
        build.down(made.name)


def gap(farm: Farm, view: int, since: float | None = None) -> float:
    """Seconds to the first step of a view: since then, or since the last step before it."""
    steps = farm.events("step")
    first = next(event for event in steps if event["view"] == view)
    before = max(event["time"] for event in steps if event["step"] < first["step"])
    return float(first["time"] - (before if since is None else since))


def measure(farm: Farm, nodes: int, times: int, save: Save) -> None:
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
        save(
            {
                "nodes": nodes,
                "step_s": round(step, 3),
                "killed_beyond_a_step_s": sorted(round(one - step, 3) for one in killed),
                "killed_median_s": round(median(killed) - step, 3),
                "joined_beyond_a_step_s": sorted(round(one - step, 3) for one in joined),
                "joined_median_s": round(median(joined) - step, 3),
            }
        )


def steps_of(farm: Farm, view: int) -> list[float]:
    """Seconds between the steps of a view."""
    times = [event["time"] for event in farm.events("step") if event["view"] == view]
    return [after - before for before, after in pairwise(times)]


def nice(process: Process, value: int) -> None:
    """Give all threads of a node's processes this niceness; what it starts inherits it."""
    for pid in process.family:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, int(thread), value)


def measure_join(farm: Farm, times: int, save: Save) -> None:
    """Two nodes train with compressed rounds; a third comes over a link of its own, ``times`` times."""
    farm.coordinator()
    running = {**farm.nodes("ab", through=True), "c": farm.node("c")}
    farm.trains("a", "b", "c", steps=3)
    for cable in farm.cables.values():
        cable.rate = 100e6 / 8
    told: list[dict[str, Any]] = []
    for _ in range(times):
        running["c"].kill()
        if "c" in farm.cables:
            farm.cables.pop("c").close()
        farm.trains("a", "b", steps=BEFORE + 5)
        before = median(steps_of(farm, farm.view()["view"])[5:])
        running["c"] = farm.node("c", through=True)
        nice(running["c"], 19)
        farm.cables["c"].rate = JOINER_BITS / 8
        farm.wait(lambda: "c" in farm.view()["spares"], "it follows as a spare")
        view, since = farm.view()["view"], time.time()
        farm.wait(lambda: any("c" in pipeline for pipeline in farm.view()["pipelines"]), "it has a place")
        nice(running["c"], os.nice(0))
        begun = next(event["time"] for event in farm.events("view") if event["view"] > view)
        farm.trains("a", "b", "c", steps=3)
        meanwhile = steps_of(farm, view)
        told.append(
            {
                "step_before_s": round(before, 4),
                "step_while_fetching_s": round(median(meanwhile), 4),
                "ratio": round(median(meanwhile) / before, 4),
                "steps_while_fetching": len(meanwhile),
                "fetching_s": round(begun - since, 1),
                "view_changes_in_steps": [round(gap(farm, n) / before, 2) for n in (view, farm.view()["view"])],
            }
        )
        save(
            {
                "megabytes": round(4 * BALLAST / 1e6, 1),
                "joiner_mbit": JOINER_BITS / 1e6,
                "median_ratio": round(median(one["ratio"] for one in told), 4),
                "joins": told,
            }
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--nodes", type=int, default=3, help="that train when one is killed")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--join", action="store_true")
    kind.add_argument("--worldwide", action="store_true")
    parser.add_argument("--output", type=Path, help="instead of a file in benchmarks/results")
    wanted = parser.parse_args()
    suffix = "_join" if wanted.join else "_worldwide" if wanted.worldwide else ""
    output = wanted.output or RESULTS / f"recovery{suffix}.json"

    def save(result: dict[str, Any]) -> None:
        result = {"load": [round(one, 1) for one in os.getloadavg()], "cores": os.cpu_count(), **result}
        output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory() as scratch, contextlib.closing(Nursery()) as nursery:
        folder = Path(scratch) / "run"
        if wanted.join:
            updates, rest = JOIN_UPDATES, {"parallel": {"pipelines": 3}, "checkpoint": {"every": 0}}
            with Farm(folder, nursery, pace=0.05, ballast=BALLAST, updates=updates, **rest) as farm:
                measure_join(farm, wanted.times, save)
        elif wanted.worldwide:
            with worldwide(folder, nursery, wanted.nodes) as farm:
                measure(farm, wanted.nodes, wanted.times, save)
        else:
            with Farm(folder, nursery, parallel={"pipelines": wanted.nodes}) as farm:
                measure(farm, wanted.nodes, wanted.times, save)
    print(output.read_text())


if __name__ == "__main__":
    main()
