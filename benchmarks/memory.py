"""What a node holds beyond what training alone needs, in real processes.

    python -m benchmarks.memory [--mode NAME ...] [--layers 7]

Two whole runs on this machine for each mode: a coordinator and nodes that hold the whole model, GPT-2s of 34 and
103 million parameters. A node's peak is its trainer's high-water mark (VmHWM, with the shared memory that it has
touched) and its I/O process's private memory; the mean over the nodes counts, for what they publish is 1/n on average.
What grows with the model is the difference of the two peaks; taken off is what any training loop holds, weights,
gradient and the optimiser's moments, and the rest is given in fp32 copies of the stage, beside the limit: 1.3, 1/n more
where members publish, 1 more with an outer momentum or an error feedback. ``highest``: of the highest peaks.
``fixed_mb`` is what does not grow: libraries, buffers of a segment. On a busy machine messages wait, and take memory.
Results: benchmarks/results/memory.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results" / "memory.json"
WIDTH = 640
LARGER = 3
"""The second model has so many times the layers of the first."""
BLOCK = 12 * WIDTH * WIDTH
"""Parameters of a block, but for biases."""
COCKTAIL = "cocktail:random=0.1,top=0.2,bits=4"
SPARSE = "chunked_topk:k=64,bits=2,feedback=true"


@dataclass(frozen=True)
class Mode:
    """A way to train, and what the limit allows for it. moments: fp32 copies that the optimiser holds."""

    name: str
    nodes: int
    updates: dict[str, Any]
    feedback: bool = False
    publishers: bool = False
    optimizer: str = "adamw"
    moments: float = 2.0

    @property
    def steps(self) -> int:
        """Measured until so many are done: after a few rounds, and well before the run ends, with a checkpoint that is
        another matter."""
        return max(6, 2 * int(self.updates.get("every", 1)) + 2)

    @property
    def limit(self) -> float:
        """Copies that are allowed beyond weights, gradient and moments."""
        return 1.3 + (1 / self.nodes if self.publishers else 0.0) + self.feedback


def delta(codec: str, overlap: int = 1, **more: Any) -> dict[str, Any]:
    return {"mode": "delta", "codec": codec, "overlap": overlap, **more}


NESTEROV = {"every": 5, "outer": "nesterov:lr=0.7,momentum=0.9"}
HALVES = {"residual": "bf16"}
MODES = [
    Mode("gradient, none, 2 nodes", 2, {"mode": "gradient", "codec": "none"}),
    Mode("gradient, int8, 4 nodes", 4, {"mode": "gradient", "codec": "int8"}, True, True),
    Mode(
        "gradient, topk with feedback, 4 nodes",
        4,
        {"mode": "gradient", "codec": "topk:ratio=0.01,feedback=true"},
        True,
        True,
    ),
    Mode("delta, cocktail, overlap 1, 2 nodes", 2, delta(COCKTAIL)),
    Mode("delta, cocktail, overlap 1, 4 nodes", 4, delta(COCKTAIL), publishers=True),
    Mode("delta, cocktail, outer Nesterov, 4 nodes", 4, delta(COCKTAIL, **NESTEROV), True, True),
    Mode("delta, chunked top-k with feedback, overlap 0, 4 nodes", 4, delta(SPARSE, 0, every=5), True, True),
    Mode("delta, chunked top-k with feedback, overlap 1, 4 nodes", 4, delta(SPARSE, 1, every=5), True, True),
    Mode("delta, chunked top-k with feedback, overlap 2, 4 nodes", 4, delta(SPARSE, 2, every=5), True, True),
    Mode("gradient, int8, residual bf16, 4 nodes", 4, {"mode": "gradient", "codec": "int8", **HALVES}, True, True),
    Mode("delta, chunked top-k, residual bf16, overlap 1, 4 nodes", 4, delta(SPARSE, 1, every=5, **HALVES), True, True),
    Mode("delta, chunked top-k, residual bf16, overlap 2, 4 nodes", 4, delta(SPARSE, 2, every=5, **HALVES), True, True),
    Mode("delta, int4, overlap 1, 4 nodes", 4, delta("int4"), publishers=True),
    Mode("delta, int4, residual bf16, overlap 1, 4 nodes", 4, delta("int4", **HALVES), publishers=True),
    Mode("delta, none, overlap 1, 2 nodes", 2, delta("none")),
    Mode("delta, none, overlap 1, 4 nodes", 4, delta("none"), publishers=True),
]


def job_text(mode: Mode, layers: int) -> str:
    job = {
        "run": {"name": "memory", "steps": 10 * mode.steps},
        "model": {"family": "gpt2", "layers": layers, "width": WIDTH, "heads": 8, "context": 4},
        "data": {"text": ["text.txt"]},
        "train": {
            "batch": 2 * mode.nodes,
            "microbatch": 1,
            "optimizer": mode.optimizer,
            "learning_rate": 1e-4,
            "eval_every": 0,
        },
        "parallel": {"stages": 1, "pipelines": mode.nodes},
        "updates": mode.updates,
        "checkpoint": {"every": 0},
    }
    lines = []
    for table, values in job.items():
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    return "\n".join(lines)


def peaks(mode: Mode, layers: int) -> list[int]:
    """Bytes: the peak of each node in its first steps."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text.txt").write_text("to be, or not to be: that is the question. " * 400)
        (folder / "job.toml").write_text(job_text(mode, layers))
        words = ["run", "job.toml", "--nodes", str(mode.nodes), "--state", "state", "--json"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (folder / "events").open("wb") as events, (folder / "log").open("wb") as log:
            run = subprocess.Popen(
                [sys.executable, "-m", "farflung", *words], cwd=folder, env=environment, stdout=events, stderr=log
            )
            try:
                found = watch(run, folder / "events", mode.steps)
            finally:
                for pid in reversed(family(run.pid)):  # nothing of it is wanted, least of all a last checkpoint
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                run.wait(60)
        if len(found) != mode.nodes:
            raise SystemExit(f"{mode.name}: {len(found)} nodes were seen\n{(folder / 'log').read_text()[-2000:]}")
        return sorted(found.values())


def watch(run: subprocess.Popen[bytes], events: Path, steps: int) -> dict[int, int]:
    """Trainer's pid -> the largest of (its high-water mark + its I/O process's private memory)."""
    found: dict[int, int] = {}
    while run.poll() is None and f'"step": {steps},' not in events.read_text():
        for pid in children(run.pid):
            if b"join" in command_of(pid):
                mark = status_of(pid, "VmHWM") + sum(status_of(child, "RssAnon") for child in children(pid))
                found[pid] = max(found.get(pid, 0), mark)
        time.sleep(0.02)
    return found


def family(pid: int) -> list[int]:
    """A process and all that it has started."""
    return [pid, *(one for child in children(pid) for one in family(child))]


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def status_of(pid: int, key: str) -> int:
    """Bytes of a line of /proc/PID/status; 0 of a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(key + ":")), 0)


def measure(mode: Mode, layers: int) -> dict[str, Any]:
    small, large = peaks(mode, layers), peaks(mode, LARGER * layers)
    copy, needed = 4 * layers * BLOCK, 2 + mode.moments
    least, most = mean(small), mean(large)
    return {
        "mode": mode.name,
        "copies": round((most - least) / ((LARGER - 1) * copy) - needed, 2),
        "highest": round((max(large) - max(small)) / ((LARGER - 1) * copy) - needed, 2),
        "limit": round(mode.limit, 2),
        "fixed_mb": round((LARGER * least - most) / (LARGER - 1) / 1e6),
        "peak_mb": [round(least / 1e6), round(most / 1e6)],
        "parameters": [layers * BLOCK, LARGER * layers * BLOCK],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", action="append", help="a part of a mode's name; several are allowed")
    parser.add_argument("--layers", type=int, default=7)
    options = parser.parse_args()
    picked = [mode for mode in MODES if not options.mode or any(part in mode.name for part in options.mode)]
    rows = []
    for mode in picked:
        rows.append(measure(mode, options.layers))
        row = rows[-1]
        verdict = "within" if row["copies"] <= row["limit"] else "OVER"
        print(f"{row['mode']:58} {row['copies']:5.2f} copies, {verdict} {row['limit']:.2f}   {row}", flush=True)
        if not options.mode:
            RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
