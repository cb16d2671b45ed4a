"""Predicted against real: placements of four hosts on an emulated WAN with unequal links, each forced upon a run.

    python -m benchmarks.predict_real [--quick] [--steps 8] [--repeats 1] [--placements chain-0,pairs-1]

Three pipelines of four stages (chains) and three ways to make two pipelines of two (pairs), whose rounds share lines
with their activations. Each is a whole run: nodes join, measure themselves and their links, and get the plan that the
scheduler makes of this placement (its own cut, depth and publishers). What the scheduler then predicts, with what the
nodes measured, stands beside the median time between steps. The hosts compute unequally, too: each trainer has a part
of a core (`SHARES`). `--quick`: links twice as fast and 6 steps, under 8 minutes on a quiet machine. The model is small
and the links are slow, so that a busy machine changes little. Needs root, as `farflung wan` does. Results:
benchmarks/results/predict_real.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from farflung.deploy.wan import build
from farflung.deploy.wan.run import run as run_on_wan
from farflung.deploy.wan.topology import Change, dns_name
from farflung.examples.shakespeare import write_text

from . import cpu_shares
from .predict_paper import rank_correlation
from .wan import star

RESULTS = Path(__file__).resolve().parent / "results" / "predict_real.json"
LINKS = {
    (0, 1): (20, 4), (2, 3): (15, 6), (0, 2): (3, 40), (0, 3): (5, 30), (1, 2): (8, 20), (1, 3): (2, 50),
}  # fmt: skip
"""(host, host) -> Mbit/s both ways, ms there and back."""
SHARES = (0.5, 0.3, 0.4, 0.3)
"""Of a core, that each host computes with; none is below half of the others, or the coordinator would call it equal."""
QUICK_STEPS, QUICK_RATES = 6, 2.0
PLACEMENTS = {
    "chain-0": [[0, 1, 2, 3]],
    "chain-1": [[1, 0, 3, 2]],
    "chain-2": [[0, 2, 1, 3]],
    "pairs-0": [[0, 1], [2, 3]],
    "pairs-1": [[0, 3], [1, 2]],
    "pairs-2": [[0, 2], [1, 3]],
}
LEFT_OUT = 2
"""Steps at the beginning that are no part of the median."""

JOB = """\
[run]
name = "predict-real"
steps = {steps}
[model]
family = "gpt2"
layers = 4
width = 64
heads = 1
context = 256
[data]
text = ["{text}"]
[train]
batch = 32
microbatch = 4
learning_rate = 1e-3
eval_every = 0
[parallel]
stages = {stages}
pipelines = {pipelines}
min_nodes = 4
[updates]
mode = "delta"
overlap = 1
codec = "int8"
[activations]
forward = "{forward}"
backward = "{forward}"
[checkpoint]
every = 0
"""

FORCED = '''\
"""Put before a run's search for plans: the placement of this file's folder, finished and timed by the scheduler."""

import json
import os
import sys

if "farflung.coordinator.planning.search_process" in sys.orig_argv:
    from farflung.coordinator.planning import planner
    from farflung.scheduler import Network, predict
    from farflung.scheduler.networks.guesses import confidence_of
    from farflung.scheduler.planning.finish import finish
    from farflung.scheduler.search.shapes import candidate, cut_for
    from farflung.scheduler.timing.estimate import Estimator
    import numpy

    def search(asked):
        with open(os.environ["FORCED_PLACEMENT"]) as file:
            rows = json.load(file)
        names = sorted(asked.question.names)
        known = {(one, other): (latency, rate) for one, other, latency, rate in asked.measured}
        network = Network.measured(
            sorted(asked.devices, key=lambda device: device.name),
            {pair: found[0] for pair, found in known.items()},
            {pair: found[1] for pair, found in known.items()},
        )
        estimator = Estimator(network, asked.workload)
        places = numpy.array(rows)
        cut = cut_for(estimator, places, 1)
        made = finish(estimator, candidate(estimator, places, [], cut, "forced"))
        told = predict(network, asked.workload, made)
        said = {
            "step_s": told.step_s,
            "bottleneck": told.bottleneck,
            "seconds": told.seconds,
            "tflops": [device.tflops for device in network.devices],
            "names": names,
            "links": {f"{one}>{other}": found[1] / 1e6 for (one, other), found in known.items()},
        }
        with open(os.environ["FORCED_PLACEMENT"] + ".told", "w") as file:
            json.dump(said, file)
        return made

    planner.search = search
'''


def train(made: Any, name: str, rows: list[list[int]], folder: Path, options: Any) -> dict[str, Any]:
    """One run with this placement: predicted and measured seconds of a step."""
    (folder / "sitecustomize.py").write_text(FORCED + cpu_shares.JOIN)
    placement = folder / "placement.json"
    placement.write_text(json.dumps(rows))
    words = {"steps": options.steps, "text": options.text, "stages": len(rows[0]), "pipelines": len(rows)}
    (folder / "job.toml").write_text(JOB.format(**words, forward=options.forward))
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{before}"
    os.environ["FORCED_PLACEMENT"] = str(placement)
    times: list[float] = []
    late = "no word of it"

    def show(event: Any) -> None:
        nonlocal late
        if event["event"] == "step":
            times.append(event["time"])
        elif event["event"] == "wan" and event.get("what") == "lateness":
            late = event["why"]
        elif event["event"] == "view":
            assert [list(row) for row in event["pipelines"]], event

    try:
        run_on_wan(made.name, str(folder / "job.toml"), show, state=str(folder / "state"))
    finally:
        os.environ["PYTHONPATH"] = before
        del os.environ["FORCED_PLACEMENT"]
    told = json.loads(Path(f"{placement}.told").read_text())
    gaps = [round(after - earlier, 3) for earlier, after in itertools.pairwise(times[LEFT_OUT:])]
    measured = statistics.median(gaps)
    error = told["step_s"] / measured - 1
    row = {"placement": name, "predicted_s": round(told["step_s"], 3), "measured_s": round(measured, 3), "error": error}
    return {**row, "gaps_s": gaps, "emulator": late, "told": told}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--equal", action="store_true", help="let all hosts compute with what there is")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--forward", default="none", help="the codec of activations and their gradients")
    parser.add_argument("--placements", type=lambda text: text.split(","), default=list(PLACEMENTS))
    options = parser.parse_args()
    if options.quick:
        options.steps = QUICK_STEPS
    shares = None if options.equal or not cpu_shares.possible() else SHARES
    if shares is None and not options.equal:
        print("no control groups with parts of a core can be made here: all hosts compute alike")
    load = os.getloadavg()[0]
    made = star(4, 10)
    rows: list[dict[str, Any]] = []
    try:
        hosts = [host.name for host in made.topology.hosts]
        for (one, other), (rate, trip) in LINKS.items():
            rate *= 1e6 * (QUICK_RATES if options.quick else 1.0)
            values = {"rate": rate, "delay_ms": trip / 2, "queue_ms": 200.0}
            made.change(Change(0, "set", f"{hosts[one]}<->{hosts[other]}", values))
        for _, name in itertools.product(range(options.repeats), options.placements):
            with tempfile.TemporaryDirectory(prefix="farflung-predict-") as scratch:
                write_text(Path(scratch))
                options.text = Path(scratch) / "shakespeare" / "hamlet.txt"
                parts = dict(zip(map(dns_name, hosts), shares, strict=True)) if shares else {}
                with cpu_shares.groups(parts) if parts else nullcontext():
                    rows.append(train(made, name, PLACEMENTS[name], Path(scratch), options))
            last, so_far = rows[-1], keep(rows, load, shares)
            print(
                f"{name:8} predicted {last['predicted_s']:7.3f} s, measured {last['measured_s']:7.3f} s "
                f"({last['error']:+.1%}): {last['told']['bottleneck']}; so far {so_far['mean_absolute_error']:.1%}, "
                f"rank correlation {so_far['rank_correlation']:.3f}",
                flush=True,
            )
    finally:
        build.down(made.name)
    print(RESULTS)


def keep(rows: list[dict[str, Any]], load: float, shares: tuple[float, ...] | None) -> dict[str, Any]:
    """Save what there is, as it comes: a benchmark may be broken off."""
    predicted, measured = ([row[key] for row in rows] for key in ("predicted_s", "measured_s"))
    errors = [row["error"] for row in rows]
    result = {
        "load_before": load,
        "shares_of_a_core": shares,
        "mean_absolute_error": statistics.mean(abs(error) for error in errors),
        "worst": max(errors, key=abs),
        "rank_correlation": rank_correlation(predicted, measured),
        "best_is_best": predicted.index(min(predicted)) == measured.index(min(measured)),
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    return result


if __name__ == "__main__":
    main()
