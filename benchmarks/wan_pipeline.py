"""What compressed activations are worth: step times of a pipeline over slow links, and of 2 x 2 nodes over the world.

    python -m benchmarks.wan_pipeline stages --rates 10,100       # 4 stages, fp32 bf16 tile aqsgd
    python -m benchmarks.wan_pipeline stages --schedules 1f1b,gpipe
    python -m benchmarks.wan_pipeline world --scale 0.1           # 2 x 2: worldwide compressed, lan not

Every run trains the same GPT-2 from the same weights on the same samples, several epochs of a short text, so that
AQ-SGD has seen its samples; a figure is the median time between steps in the last epochs, repetitions interleaved, and
beside it stands the loss of the last step. Needs root, as `farflung wan` does. Results go to
benchmarks/results/wan_pipeline.json, with the emulator's own lateness; rows of other rates and codecs stay there as
long as the sizes are the same.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from farflung.deploy.wan import build, files
from farflung.deploy.wan.run import run as run_on_wan
from farflung.deploy.wan.topology import Change
from farflung.examples.shakespeare import write_text

from .wan import star

RESULTS = Path(__file__).resolve().parent / "results" / "wan_pipeline.json"
ACTIVATIONS = {
    "fp32": ("none", "none"),
    "bf16": ("bf16", "bf16"),
    "tile": ("tile:bits=4", "tile:bits=6"),
    "aqsgd": ("aqsgd:bits=4", "int8"),
}
OF_ONE_RUN = ("what", "text", "rates", "schedules", "codecs", "repeats", "load_before")
OF_A_WAY = ("rate_mbit", "schedule", "topology", "activations", "updates")
"""What rows have in common that are repetitions of one another."""
EPOCHS, LEFT_OUT = 6, 2
"""Epochs that are trained, and those at the beginning that are no part of the median: AQ-SGD's first is not compressed
as the later ones are."""

JOB = """\
[run]
name = "wan-pipeline"
steps = {steps}
[model]
family = "gpt2"
layers = {layers}
width = {width}
heads = {heads}
context = {context}
[data]
text = ["{text}"]
[train]
batch = {batch}
microbatch = {microbatch}
learning_rate = 1e-3
eval_every = 0
[parallel]
stages = {stages}
pipelines = {pipelines}
min_nodes = {nodes}
schedule = "{schedule}"
[updates]
mode = "{mode}"
overlap = {overlap}
codec = "{codec}"
dense_rounds = 0
[activations]
forward = "{forward}"
backward = "{backward}"
[checkpoint]
every = 0
"""


def train(
    topology: str,
    options: Any,
    folder: Path,
    schedule: str,
    codecs: tuple[str, str],
    updates: tuple[str, int, str],
    **fit: Any,
) -> dict[str, Any]:
    """One run: seconds between the steps of the later epochs, and the last loss. updates: mode, overlap and codec."""
    text = folder / "text.txt"
    steps = EPOCHS * options.steps
    text.write_text((options.text / "hamlet.txt").read_text()[: options.steps * options.batch * options.context + 1])
    words = {**vars(options), "text": text, "steps": steps, "heads": options.width // 64}
    words |= dict(zip(("mode", "overlap", "codec"), updates, strict=True))
    words |= {
        "schedule": schedule,
        "forward": codecs[0],
        "backward": codecs[1],
        "nodes": options.stages * options.pipelines,
    }
    (folder / "job.toml").write_text(JOB.format(**words))
    found: list[dict[str, Any]] = []
    seen: list[dict[str, Any]] = []

    def show(event: Any) -> None:
        (found if event["event"] == "step" else seen).append(event)

    run_on_wan(topology, str(folder / "job.toml"), show, state=str(folder / "state"), **fit)
    times = [event["time"] for event in found][LEFT_OUT * options.steps - 1 :]
    late = next(
        (event["why"] for event in seen if event["event"] == "wan" and event.get("what") == "lateness"), "no word of it"
    )
    return {
        "gaps_s": [round(later - earlier, 3) for earlier, later in itertools.pairwise(times)],
        "loss": statistics.mean(event["loss"] for event in found[-options.steps :]),
        "emulator": late,
    }


def stages(options: Any) -> None:
    """Four stages, every codec in every schedule at every rate."""
    made = star(options.stages, options.rtt)
    rows: list[dict[str, Any]] = []
    try:
        with tempfile.TemporaryDirectory(prefix="farflung-wan-") as scratch:
            options.text = text_in(Path(scratch))
            ways = itertools.product(range(options.repeats), options.rates, options.schedules, options.codecs)
            for _, rate, schedule, name in ways:
                made.change(Change(0, "set", "*->*", {"rate": rate * 1e6, "queue_ms": max(100.0, options.rtt)}))
                folder = Path(scratch) / "run"
                folder.mkdir()
                row = train(made.name, options, folder, schedule, ACTIVATIONS[name], ("gradient", 0, "none"))
                rows.append({"rate_mbit": rate, "schedule": schedule, "activations": name, **row})
                keep(options, rows)
                shutil.rmtree(folder)
    finally:
        build.down(made.name)


def world(options: Any) -> None:
    """Two pipelines of two stages: compressed end to end over four cities, and not compressed in one building. Both
    take local steps and exchange them one step behind, so only what is compressed differs."""
    ways = {
        "lan": (ACTIVATIONS["fp32"], "none"),
        "worldwide": (ACTIVATIONS["aqsgd"], options.updates),
    }
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="farflung-wan-") as scratch:
        options.text = text_in(Path(scratch))
        for _, (name, (codecs, updates)) in itertools.product(range(options.repeats), ways.items()):
            folder = Path(scratch) / "run"
            folder.mkdir()
            hosts = [host.name for host in files.load(name).hosts[:4]]
            fit = {"scale": options.scale} if name == "worldwide" else {}
            row = train(name, options, folder, "1f1b", codecs, ("delta", 1, updates), nodes=hosts, **fit)
            rows.append({"topology": name, "activations": codecs[0], "updates": updates, **row})
            keep(options, rows)
            shutil.rmtree(folder)


def text_in(folder: Path) -> Path:
    write_text(folder)
    return folder / "shakespeare"


def keep(options: Any, rows: list[dict[str, Any]]) -> None:
    """Tell of the last run, and save all of them: as they come, for a benchmark may be broken off."""
    row = rows[-1]
    row["load_before"] = options.load_before
    what = " ".join(str(row[key]) for key in OF_A_WAY if key in row)
    print(f"{what:60} {statistics.median(row['gaps_s']):7.3f} s a step, loss {row['loss']:.4f}", flush=True)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    sizes = {key: value for key, value in vars(options).items() if key not in OF_ONE_RUN}
    before = known.get(options.what, {})
    same = before and {key: before.get(key) for key in sizes} == sizes
    new = {identity(row) for row in rows}
    others = [row for row in before["rows"] if identity(row) not in new] if same else []
    known[options.what] = {**sizes, "rows": [*others, *rows]}
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")


def identity(row: dict[str, Any]) -> tuple[Any, ...]:
    """What a row is a repetition of."""
    return tuple(row.get(key) for key in OF_A_WAY)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["stages", "world"])
    parser.add_argument("--rates", type=lambda text: [float(one) for one in text.split(",")], default=[10.0, 100.0])
    parser.add_argument("--schedules", type=lambda text: text.split(","), default=["1f1b"])
    parser.add_argument("--codecs", type=lambda text: text.split(","), default=list(ACTIVATIONS))
    parser.add_argument("--rtt", type=float, default=20.0)
    parser.add_argument("--scale", type=float, default=1.0, help="of the world's rates")
    parser.add_argument("--updates", default="int8", help="the codec of the world's rounds")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3, help="steps an epoch")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--microbatch", type=int, default=4)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args()
    options.stages, options.pipelines = (4, 1) if options.what == "stages" else (2, 2)
    options.load_before = os.getloadavg()[0]
    {"stages": stages, "world": world}[options.what](options)
    print(RESULTS)


if __name__ == "__main__":
    main()
