"""What a node's start costs: seconds of processor time, its own and its children's, until it has joined and until it
trains, and which large packages it had loaded by then.

    python -m benchmarks.node_start [--runs 5]

A coordinator and one node on this machine; the job is a small model of a family, and one of ``model.build``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_JOB = """
[run]
steps = 3
[model]
family = "gpt2"
layers = 2
width = 32
heads = 2
context = 32
[data]
text = ["text.txt"]
[train]
batch = 8
microbatch = 4
[parallel]
pipelines = 1
stages = 1
[activations]
forward = "bf16"
"""
_COMMAND = [sys.executable, "-m", "farflung"]


def processor_seconds(process: int) -> float:
    """Of a process and all below it, ended ones too."""
    ticks, found = os.sysconf("SC_CLK_TCK"), 0
    parents: dict[int, list[int]] = {}
    times: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            words = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents.setdefault(int(words[1]), []).append(int(entry.name))
        times[int(entry.name)] = sum(map(int, words[11:15]))
    waiting = [process]
    while waiting:
        one = waiting.pop()
        found += times.get(one, 0)
        waiting += parents.get(one, [])
    return found / ticks


def start(folder: Path, link: str, number: int) -> dict[str, float]:
    """One node: processor seconds at "joined", and at its first step."""
    command = [*_COMMAND, "join", link, "--json", "--device", "cpu", "--cache", str(folder / f"cache-{number}")]
    found: dict[str, float] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as node:
        assert node.stdout is not None
        for line in node.stdout:
            event = json.loads(line)["event"]
            if event in ("joined", "step") and event not in found:
                found[event] = processor_seconds(node.pid)
    return found


def measure(runs: int) -> dict[str, Any]:
    """Medians of so many starts."""
    samples = []
    for number in range(runs):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "job.toml").write_text(_JOB)
            (folder / "text.txt").write_text("To be, or not to be, that is the question.\n" * 500)
            command = [*_COMMAND, "coordinator", "start", str(folder / "job.toml"), "--json", "--no-page"]
            command += ["--state", str(folder / "state"), "--listen", "127.0.0.1:0"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as coordinator:
                assert coordinator.stdout is not None
                events = (json.loads(line) for line in coordinator.stdout)
                link = next(event["link"] for event in events if event["event"] == "listening")
                samples.append(start(folder, link, number))
                for _ in events:  # to the end
                    pass
    print(samples, file=sys.stderr)
    return {name: round(statistics.median(sample[name] for sample in samples), 2) for name in samples[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    print(json.dumps({"cores": os.cpu_count(), "processor_seconds": measure(parser.parse_args().runs)}))


if __name__ == "__main__":
    main()
