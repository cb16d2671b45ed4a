"""Time to average a vector of 100 MB among 4 nodes on this machine: a round of ours, with TLS, beside hivemind.

    python -m benchmarks.averaging --hivemind-python venv/bin/python     (under 4 minutes on a quiet machine)
    python -m benchmarks.averaging --size 10 --repeat 2

A time is that from the start, which all nodes get at once, until the last of them has its average. Both systems'
nodes live at the same time and take turns; the first rounds of each, in which memory is touched for the first time, are
left out. hivemind finds its group before the clock starts. The median over the rounds counts. Results go to
benchmarks/results/averaging.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from farflung.coordinator.trust.authority import load_authority
from farflung.node.device import identity

ROOT = Path(__file__).resolve().parent.parent
WARM_UP = 4
"""Rounds that are left out: a node keeps the results of the last three, so that later ones find their memory used."""
RESULTS = ROOT / "benchmarks" / "results" / "averaging.json"


@contextlib.contextmanager
def group(system: str, codec: str, options: argparse.Namespace) -> Iterator[list[subprocess.Popen[str]]]:
    """The nodes of one system, ready."""
    python = options.hivemind_python if system == "hivemind" else sys.executable
    processes: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        authority = load_authority(Path(folder))
        for rank in range(options.nodes):
            key = identity.make_key()
            certificate, _ = authority.sign(identity.certificate_request(key, f"n{rank}"), f"n{rank}")
            for kind, data in (("authority", authority.nodes), ("certificate", certificate), ("key", key)):
                (Path(folder) / f"n{rank}.{kind}").write_bytes(data)
        try:
            for rank in range(options.nodes):
                words = [python, str(ROOT / "benchmarks" / "averaging_node.py"), system, codec]
                words += [str(word) for word in (rank, options.nodes, options.size * 250_000, folder)]
                quiet = None if options.verbose else subprocess.DEVNULL
                pipe = subprocess.PIPE
                processes.append(
                    subprocess.Popen(
                        words,
                        stdin=pipe,
                        stdout=pipe,
                        stderr=quiet,
                        text=True,
                        env={**os.environ, "OMP_NUM_THREADS": "1"},
                        start_new_session=True,  # so that its children end with it
                    )
                )
            answers(processes)
            yield processes
        finally:
            for process in processes:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def answers(processes: list[subprocess.Popen[str]]) -> list[str]:
    """A line of each."""
    found = []
    for rank, process in enumerate(processes):
        assert process.stdout is not None
        found.append(process.stdout.readline().strip())
        if not found[-1]:
            raise RuntimeError(f"node {rank} has ended: {' '.join(map(str, process.args))}")  # type: ignore[arg-type]
    return found


def tell(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        assert process.stdin is not None
        print(file=process.stdin, flush=True)


def average(processes: list[subprocess.Popen[str]]) -> float:
    """Seconds of one round."""
    tell(processes)
    answers(processes)
    began = time.monotonic()
    tell(processes)
    return max(map(float, answers(processes))) - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=100, help="MB of the vector in fp32")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--codecs", default="none,fp16,int8")
    parser.add_argument("--hivemind-python", help="python of an environment with hivemind")
    parser.add_argument("--verbose", action="store_true", help="show what the nodes write to stderr")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    systems = ["farflung", "hivemind"] if options.hivemind_python else ["farflung"]
    rows = []
    for codec in options.codecs.split(","):
        with contextlib.ExitStack() as stack:
            groups = {system: stack.enter_context(group(system, codec, options)) for system in systems}
            times: dict[str, list[float]] = {system: [] for system in systems}
            for turn in range(WARM_UP + options.repeat):
                for system in systems:
                    took = average(groups[system])
                    if turn >= WARM_UP:
                        times[system].append(round(took, 4))
        medians = {system: statistics.median(times[system]) for system in systems}
        ratio = round(medians["hivemind"] / medians["farflung"], 3) if len(systems) > 1 else None
        rows.append({"codec": codec, "seconds": times, "medians": medians, "ratio": ratio})
        shown = "   ".join(f"{system} {medians[system]:.3f} s" for system in systems)
        print(f"{codec:<6} {shown}" + (f"   {ratio:.2f} x" if ratio else ""), flush=True)
    result = {
        "size_mb": options.size,
        "nodes": options.nodes,
        "cores": os.cpu_count(),
        "time": time.time(),
        "rows": rows,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
