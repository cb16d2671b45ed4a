"""Wall-clock time to a validation loss over a slow link: farflung beside torch DDP (with its own hooks) and hivemind.

    python -m benchmarks.wan_loss run --seeds 3 --steps 40 --times farflung=3 [--hivemind-python venv/bin/python]
    python -m benchmarks.wan_loss draw                      # docs/wan-loss.svg from the results

Every system trains the same GPT-2 on the same text with the same batch and optimiser, and looks at the same held-out
text every few steps; the seconds count from the first step on and hold these looks. The loss to reach is the one that
DDP's fp16 hook, which is as good as exact, has at two thirds of its looks: a lossy way may need more steps, and
``--times`` gives them to it. Systems and seeds are interleaved. Needs root, as
`farflung wan` does. Results go to benchmarks/results/wan_loss.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from farflung.deploy.wan import build
from farflung.deploy.wan.lab import Lab
from farflung.examples.shakespeare import write_text

from .wan import leave_out_hivemind, our_events, star, their_lines

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "wan_loss.json"
PICTURE = ROOT / "docs" / "wan-loss.svg"
SYSTEMS = ("farflung", "ddp-fp16", "ddp-powersgd", "hivemind")
Curve = list[tuple[float, float]]
"""Seconds since the first step, validation loss."""


def curve(made: Lab, system: str, options: Any, folder: Path, seed: int) -> Curve:
    """One run of a system."""
    options = argparse.Namespace(**{**vars(options), "steps": round(options.steps * options.times.get(system, 1.0))})
    if system == "farflung":
        told = {"seed": seed, "validation": json.dumps([str(options.validation)]), "eval_every": options.eval_every}
        events = our_events(made, system, options, folder, **told)
        began = next(event["time"] for event in events if event["event"] == "step")
        arrived = [(event["time"] - began, event["loss"]) for event in events if event["event"] == "eval"]
    else:
        more = ("--seed", seed, "--validation", options.validation, "--eval-every", options.eval_every)
        lines = their_lines(made, system, options, folder, *more)
        arrived = [(line["at"] - lines[0]["at"], line["validation"]) for line in lines if "validation" in line]
    return [(round(seconds, 2), round(loss, 5)) for seconds, loss in arrived]


def seconds_to(loss: float, points: Curve) -> float | None:
    """When a curve reaches a loss, on the line between its points; None if it never does."""
    for (before, high), (after, low) in itertools.pairwise(points):
        if low <= loss:
            part = (high - loss) / (high - low) if high > low else 0.0
            return before + max(0.0, part) * (after - before)
    return None


def measure(options: Any) -> None:
    """All systems and seeds; saves the results and tells them."""
    made = star(options.nodes, options.rtt, f"{options.rate:g}mbit")
    found: dict[str, list[Curve]] = {system: [] for system in options.systems}
    keys = ("nodes", "rate", "rtt", "layers", "width", "batch", "steps", "times", "seeds")
    result = {key: getattr(options, key) for key in keys} | {"load_before": os.getloadavg()[0], "curves": found}
    try:
        with tempfile.TemporaryDirectory(prefix="farflung-wan-") as scratch:
            hamlet = next(path for path in write_text(Path(scratch)) if path.stem == "hamlet")
            options.text, options.validation = Path(scratch) / "text.txt", Path(scratch) / "validation.txt"
            words = hamlet.read_text()
            options.text.write_text(words[8192:])
            options.validation.write_text(words[:8192])
            for seed in range(1, options.seeds + 1):
                for system in options.systems:
                    folder = Path(scratch) / f"{system}-{seed}"
                    folder.mkdir()
                    found[system].append(curve(made, system, options, folder, seed))
                    seconds, loss = found[system][-1][-1]
                    print(f"seed {seed}  {system:14} {seconds:7.1f} s, loss {loss:.4f}", flush=True)
                    RESULTS.write_text(json.dumps(result, indent=1) + "\n")  # as it comes: it may be broken off
    finally:
        build.down(made.name)
    tell(result)


def tell(result: Any) -> None:
    """Seconds to the loss of the fp16 hook, the median over the seeds."""
    goals = [points[2 * len(points) // 3 - 1][1] for points in result["curves"]["ddp-fp16"]]
    for system, curves in result["curves"].items():
        times = [seconds_to(goal, points) for goal, points in zip(goals, curves, strict=True)]
        reached = [one for one in times if one is not None]
        middle = f"{statistics.median(reached):7.1f} s" if len(reached) == len(times) else "not reached"
        losses = [points[-1][1] for points in curves]
        print(f"{system:14} {middle} ({len(reached)} of {len(times)}), last loss {statistics.mean(losses):.4f}")


def draw() -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    result = json.loads(RESULTS.read_text())
    figure, axis = pyplot.subplots(figsize=(7, 4))
    for number, (system, curves) in enumerate(result["curves"].items()):
        for place, points in enumerate(curves):
            axis.plot(*zip(*points, strict=True), color=f"C{number}", label=system if place == 0 else None)
    axis.set(
        xlabel=f"seconds at {result['rate']:g} Mbit/s, {result['rtt']:g} ms", ylabel="validation loss", xscale="log"
    )
    axis.legend()
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Date": None})
    print(PICTURE)


def multiples(text: str) -> dict[str, float]:
    return {system: float(number) for system, number in (word.split("=") for word in text.split(","))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "draw"])
    parser.add_argument("--systems", type=lambda text: text.split(","), default=list(SYSTEMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rate", type=float, default=100.0, help="Mbit/s")
    parser.add_argument("--rtt", type=float, default=50.0, help="ms")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--times", type=multiples, default={}, help="farflung=3: that system gets 3 times the steps")
    parser.add_argument("--eval-every", type=int, default=10)
    parser.add_argument("--batch", type=int, default=4, help="sequences of 128 tokens a node and step")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--hivemind-python", help="python of an environment with hivemind")
    options = parser.parse_args()
    leave_out_hivemind(options)
    measure(options) if options.what == "run" else draw()


if __name__ == "__main__":
    main()
