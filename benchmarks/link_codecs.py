"""Codecs by link on an emulated WAN: a pipeline of three hosts with one fast link and one slow one.

    python -m benchmarks.link_codecs [--steps 10] [--codecs none,bf16,int8,aqsgd:bits=4]

The same job is trained with each codec on both links, then with `forward = "auto"`, where the plan chooses for each
link, then so again while the fast link becomes a slow one. What is compared: the median time between steps, and the
losses of the last steps. The slow link carries so little that a busy machine changes little. Needs root, as
`farflung wan` does. Results: benchmarks/results/link_codecs.json.
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

from farflung.deploy.wan import build, files
from farflung.deploy.wan.lab import Lab
from farflung.deploy.wan.run import run as run_on_wan
from farflung.examples.shakespeare import write_text

RESULTS = Path(__file__).resolve().parent / "results" / "link_codecs.json"
FAST, SLOW, APART = "200mbit", "3mbit", "1mbit"
LEFT_OUT = 2
"""Steps at the beginning that are no part of the median."""
JOB = """\
[run]
name = "link-codecs"
steps = {steps}
[model]
family = "gpt2"
layers = 3
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
stages = 3
pipelines = 1
min_nodes = 3
[activations]
forward = "{forward}"
backward = "{backward}"
[checkpoint]
every = 0
"""


def topology(name: str, change: bool) -> Any:
    """Three hosts: fast between 0 and 1, slow between 1 and 2. ``change``: a while after the first step the fast link
    is as slow."""
    table: dict[str, Any] = {
        "name": name,
        "regions": {"bench": {"hosts": 3}},
        "tcp_memory": "64MiB",
        "defaults": {"delay_ms": 5, "rate": APART, "queue_ms": 200.0},
        "links": [
            {"between": ["bench/0", "bench/1"], "rate": FAST, "delay_ms": 2},
            {"between": ["bench/1", "bench/2"], "rate": SLOW, "delay_ms": 10},
        ],
    }
    if change:
        table["script"] = [{"at": 5, "set": "bench/0<->bench/1", "rate": SLOW}]
    return files.parse(table, name, "link_codecs")


def train(made: Lab, forward: str, steps: int, folder: Path, text: Path) -> dict[str, Any]:
    """One run: what its links had in each view, seconds between steps, losses."""
    folder.mkdir()
    back = forward if forward in ("none", "bf16", "auto") else "int8"
    (folder / "job.toml").write_text(JOB.format(steps=steps, text=text, forward=forward, backward=back))
    events: list[dict[str, Any]] = []
    state = str(folder / "state")
    run_on_wan(made.name, str(folder / "job.toml"), lambda event: events.append(dict(event)), state=state)
    taken = [event for event in events if event["event"] == "step"]
    views = [event for event in events if event["event"] == "view"]
    times = [event["time"] for event in taken][LEFT_OUT:]
    return {
        "forward": forward,
        "views": [{"codecs": view["codecs"], "step": view["step"], "why": view["why"]} for view in views],
        "step_s": round(statistics.median(after - before for before, after in itertools.pairwise(times)), 3),
        "gaps_s": [round(after - before, 3) for before, after in itertools.pairwise(times)],
        "losses": [round(event["loss"], 4) for event in taken],
        "emulator": next((event["why"] for event in events if event.get("what") == "lateness"), "no word of it"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--codecs", type=lambda text: text.split(","), default=["none", "bf16", "int8", "aqsgd:bits=4"])
    parser.add_argument("--steps-of-change", type=int, default=30, help="0: without the run whose link changes")
    options = parser.parse_args()
    load, rows = os.getloadavg()[0], []
    with tempfile.TemporaryDirectory(prefix="farflung-links-") as scratch:
        write_text(Path(scratch))
        text = Path(scratch) / "shakespeare" / "hamlet.txt"
        trials = [(forward, options.steps, False) for forward in [*options.codecs, "auto"]]
        if options.steps_of_change:
            trials.append(("auto", options.steps_of_change, True))
        for number, (forward, steps, change) in enumerate(trials):
            made = build.up(topology(f"links{os.getpid()}-{number}", change), None)
            try:
                row = train(made, forward, steps, Path(scratch) / str(number), text)
            finally:
                build.down(made.name)
            rows.append({**row, "changes": change})
            chosen = "; then ".join(str(view["codecs"]) for view in row["views"] if view["codecs"])
            print(f"{forward:13} {row['step_s']:7.3f} s a step, loss {row['losses'][-1]:.4f} {chosen}", flush=True)
    told = {"load_before": load, "rows": rows, **compared(rows)}
    RESULTS.write_text(json.dumps(told, indent=1) + "\n")
    print({key: value for key, value in told.items() if key != "rows"})


def compared(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the run whose plan chose: its step beside the best with one codec, and its loss beside that with none."""
    steady = {row["forward"]: row for row in rows if not row["changes"]}
    own, fixed = steady["auto"], [row for name, row in steady.items() if name != "auto"]
    plain = min(fixed, key=lambda row: row["forward"] != "none")
    last = min(len(own["losses"]), len(plain["losses"])) - 1
    return {
        "step_of_best": round(own["step_s"] / min(row["step_s"] for row in fixed), 3),
        "loss_of_plain": round(own["losses"][last] / plain["losses"][last], 4),
    }


if __name__ == "__main__":
    main()
