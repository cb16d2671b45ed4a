"""torchft beside benchmarks/recovery.py: from kill -9 of a replica to the next committed step, at its default settings.

    python -m venv build/torchft && build/torchft/bin/pip install torch torchft numpy
    python -m benchmarks.torchft_node --python build/torchft/bin/python [--times N] [--nodes N]

The model, and the time that a step computes, are those of the farm of recovery.py. Every node is a replica group of one
process with a manager, gloo and AdamW; a lighthouse finds them, started with nothing but the number of replicas that a
quorum needs at least, 1. The gradients are averaged by the manager's own allreduce: with torchft's DDP of 0.2.0 the
survivors of a broken exchange end too (an assertion in its hook). As there, what counts is from the kill to the first
step that the others commit without it. With ``--node`` this file is such a node, and needs no farflung.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results" / "recovery_torchft.json"
PAUSE = 0.08
"""Seconds that a node of the farm computes in a step: 2 microbatches of 2 layers that sleep 0.02 s."""
PATIENCE = 300.0


def node(lighthouse: str) -> None:
    """Train for ever, and say every committed step."""
    import torch
    import torchft
    from torch import nn

    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 4))
    inner = torch.optim.AdamW(model.parameters(), lr=0.002)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        hostname="localhost",
    )
    optimizer = torchft.Optimizer(manager, inner)
    while True:
        inputs, targets = torch.randn(4, 16), torch.randint(4, (4,))
        optimizer.zero_grad()
        time.sleep(PAUSE)
        nn.functional.cross_entropy(model(inputs), targets).backward()
        gradients = [values.grad for values in model.parameters() if values.grad is not None]
        together = nn.utils.parameters_to_vector(gradients)
        manager.allreduce(together).wait()
        nn.utils.vector_to_parameters(together, gradients)
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() > before:
            said = {"time": time.time(), "step": before + 1, "nodes": manager.num_participants()}
            print(json.dumps(said), flush=True)


class Replica:
    """A node's process, and the committed steps that it said."""

    def __init__(self, python: str, lighthouse: str, log: Path) -> None:
        words = [python, __file__, "--node", lighthouse]
        with log.open("ab") as file:
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=file, text=True)
        self.steps: list[dict[str, Any]] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.steps.append(json.loads(line))

    def with_nodes(self, nodes: int, since: float) -> list[float]:
        """When it committed steps of so many nodes, from a time on."""
        return [step["time"] for step in list(self.steps) if step["nodes"] == nodes and step["time"] > since]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join()


@contextlib.contextmanager
def lighthouse(python: str, log: Path) -> Iterator[str]:
    """Its address."""
    with socket.create_server(("localhost", 0)) as one:
        port = one.getsockname()[1]
    words = [str(Path(python).with_name("torchft_lighthouse")), "--min_replicas", "1", "--bind", f"[::]:{port}"]
    with log.open("ab") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file)
    try:
        yield f"http://localhost:{port}"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def wait(replicas: list[Replica], nodes: int, since: float, steps: int) -> float:
    """Wait until all of these have committed ``steps`` steps of ``nodes`` nodes; when the first one was."""
    deadline = time.time() + PATIENCE
    while True:
        found = [replica.with_nodes(nodes, since) for replica in replicas]
        if all(len(one) >= steps for one in found):
            return min(one[0] for one in found)
        if time.time() > deadline:
            sys.exit(f"{[len(one) for one in found]} of {steps} steps of {nodes} nodes in {PATIENCE:.0f} s")
        time.sleep(0.05)


def measure(options: argparse.Namespace) -> None:
    log = Path(options.log)
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(lighthouse(options.python, log))
        replicas: list[Replica] = []
        stack.callback(lambda: [replica.kill() for replica in replicas])
        replicas += [Replica(options.python, address, log) for _ in range(options.nodes)]
        wait(replicas, options.nodes, 0.0, 20)
        killed: list[float] = []
        for number in range(options.times):
            victim = replicas.pop(0)
            when = time.time()
            victim.kill()
            killed.append(wait(replicas, options.nodes - 1, when, 10) - when)
            since = time.time()
            replicas.append(Replica(options.python, address, log))
            wait(replicas, options.nodes, since, 10 + number % 5)
            said = [one["time"] for one in replicas[0].steps if one["nodes"] == options.nodes]
            step = median(later - earlier for earlier, later in pairwise(said))
            result = {
                "load": [round(one, 1) for one in os.getloadavg()],
                "cores": os.cpu_count(),
                "nodes": options.nodes,
                "step_s": round(step, 3),
                "killed_beyond_a_step_s": sorted(round(one - step, 3) for one in killed),
                "killed_median_s": round(median(killed) - step, 3),
            }
            options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(options.output.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="of an environment with torchft")
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--log", default=os.devnull, help="what torchft says")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--node", metavar="LIGHTHOUSE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.node:
        node(options.node)
    else:
        measure(options)


if __name__ == "__main__":
    main()
