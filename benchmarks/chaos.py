"""A run to which everything happens: nodes are killed, frozen, cut off, slowed down, join and leave; the coordinator is
killed, and its disk takes no checkpoint.

    python -m benchmarks.chaos [--seed N] [--events N] [--nodes N] [--mode gradient|delta] [--kinds KIND ...]
    python -m benchmarks.chaos --nightly [--seed N] [--output FILE]

Real processes on this machine (tests/support/farm.py), events drawn from the seed, the next one as soon as the run has
recovered. At the end: the run has ended, all members held the same bits in every view and at the end (the coordinator
compares them), every sample was counted once, and in ``gradient`` mode with codec ``none`` the loss of every step is
that of a plain loop in one process, to 1e-4; in ``delta`` mode the final loss is within 2 % of that of an undisturbed
run of as many samples. In ``delta`` mode the optimiser is SGD without clipping: the mean of its local steps is the step
of the whole batch, however many nodes share it. Averaged steps of AdamW, or clipped ones, are the longer the fewer
nodes share a batch, so that a run that loses nodes learns faster than one that keeps all: no comparison.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
sys.path.append(str(Path(__file__).parent))

from chaos_events import KINDS, Harsh, jumping_clocks
from farm import Farm, Nursery, Process
from ports import free_port

from farflung.coordinator.store.store import Store

BATCH = 12
EVENTS = ("kill", "freeze", "nap", "coordinator", "leave", "join", "cut", "slow", "disk", *KINDS)
NIGHT_S, NIGHT_NODES, EVERY_S = 1800.0, 8, 10.0
"""The nightly form: so long, so many nodes, and an event as often, or when the run has recovered from the last one."""
MORE_STEPS = 4
"""What the run trains after an event before it counts as recovered."""
STEADY = {"decay": "none", "microbatch": 1}
"""The run's length is known only at its end, and must not change the learning rate; a step has work for eight nodes."""
DELTA = {"mode": "delta", "codec": "int8", "overlap": 1}
SGD = {"optimizer": "sgd", "learning_rate": 0.02, "clip": 0.0}
MORE_AT_THE_END = {"gradient": 10, "delta": 500}
"""Steps after the last event: early on a curve falls by 2 % in a few steps."""


class Chaos(Harsh):
    """One run and what happens to it."""

    def __init__(self, farm: Farm, seed: int, nodes: int) -> None:
        self.farm, self.chance = farm, random.Random(seed)
        self.names = [f"n{number}" for number in range(nodes)]
        self.nodes: dict[str, Process] = {}
        self.told: list[dict[str, Any]] = []
        self.kinds = EVENTS

    @property
    def alive(self) -> list[str]:
        return sorted(name for name, node in self.nodes.items() if node.alive)

    def begin(self) -> None:
        self.farm.coordinator()
        for name in self.names:
            self.join(name)
        self.farm.wait(self.all_train, "everybody trains")

    def all_train(self) -> bool:
        """Whether all nodes have a place; one that has ended by itself is started again."""
        for name in set(self.names) - set(self.alive):
            self.join(name)
        inside = sorted(name for pipeline in self.farm.view()["pipelines"] for name in pipeline)
        return inside == self.names and self.farm.step() > 0

    def join(self, name: str) -> None:
        self.nodes[name] = self.farm.node(name, through=True)

    def happen(self) -> None:
        """One event, and what it takes until the run trains on."""
        kind = self.chance.choice(self.kinds)
        absent = [name for name in self.names if name not in self.alive]
        if kind == "join" or len(self.alive) <= 2:
            kind = "join" if absent else "cut"
        name = self.chance.choice(absent if kind == "join" else self.alive)
        before, began = self.farm.step(), time.monotonic()
        getattr(self, f"_{kind}")(name)
        self.progress(before)
        seconds = time.monotonic() - began
        self.told.append({"event": kind, "node": name, "after_step": before, "recovered_s": round(seconds, 2)})

    def progress(self, before: int) -> None:
        self.farm.wait(lambda: self.farm.step() >= before + MORE_STEPS, f"steps after {self.told[-1:]}")

    def end(self, steps: int) -> dict[str, Any]:
        """Let the run end ``steps`` steps from now; its ``done`` event."""
        last = self.farm.step() + steps
        setting = Process(self.farm, "set", ["coordinator", "set", "state", f"run.steps={last}"])
        self.farm.wait(lambda: not setting.alive, "the run's end is set")
        assert setting.status == 0, setting.events
        return dict(self.farm.wait(lambda: self.farm.c.of("done"), "the run is done")[0])

    def _kill(self, name: str) -> None:
        self.nodes[name].kill()
        self.farm.cables.pop(name).close()  # nobody answers there any more

    def _leave(self, name: str) -> None:
        self.nodes[name].send(signal.SIGTERM)
        self.farm.wait(lambda: not self.nodes[name].alive, f"{name} leaves")

    def _join(self, name: str) -> None:
        self.join(name)
        self.farm.wait(lambda: self.has_settled(name), f"{name} has a place, or is told why not")

    def has_settled(self, name: str) -> bool:
        """Whether a joiner trains or is held as a spare: where links were slow when they were measured, it may be."""
        spare = any("is a spare" in event["message"] for event in self.nodes[name].of("notice"))
        return spare or name in str(self.farm.view()["pipelines"]) or not self.nodes[name].alive

    def _nap(self, name: str) -> None:
        """Stopped for a moment, which costs it nothing."""
        self.nodes[name].freeze()
        time.sleep(self.chance.uniform(0.1, 1.5))
        self.nodes[name].thaw()

    def _freeze(self, name: str) -> None:
        """Stopped until the others have gone on without it; then it comes back by itself."""
        before, joined = len(self.farm.c.of("left", node=name)), len(self.farm.c.of("joined", node=name))
        self.nodes[name].freeze()
        self.farm.wait(lambda: len(self.farm.c.of("left", node=name)) > before, f"the others go on without {name}")
        self.nodes[name].thaw()
        self.farm.wait(lambda: len(self.farm.c.of("joined", node=name)) > joined, f"{name} comes back")

    def _cut(self, name: str) -> None:
        self.farm.cables[name].cut()

    def _slow(self, name: str) -> None:
        self.farm.cables[name].rate = 100_000
        time.sleep(self.chance.uniform(0.2, 1.0))
        self.farm.cables[name].rate = None

    def _disk(self, name: str) -> None:
        """Nothing can be written where the checkpoints lie, for at least two of them; the last good one stays."""
        folder, aside = self.farm.state / "checkpoints", self.farm.state / "checkpoints-aside"
        self.farm.wait(lambda: self.farm.events("checkpoint"), "there is a checkpoint")
        before, refused = self.farm.step(), len(self.farm.events("warning"))
        folder.rename(aside)
        folder.touch()
        self.farm.wait(lambda: self.farm.step() >= before + 12, "training goes on without checkpoints")
        self.farm.wait(
            lambda: len(self.farm.events("warning")) > refused, "somebody says that no checkpoint is written"
        )
        folder.unlink()
        aside.rename(folder)

    def _coordinator(self, name: str) -> None:
        """It is killed; the nodes train on for a while, and it comes back."""
        self.farm.c.kill()
        time.sleep(self.chance.uniform(0.0, 2.0))
        self.farm.coordinator()


def chaos(
    folder: Path,
    nursery: Nursery,
    seed: int,
    events: int,
    nodes: int,
    mode: str,
    seconds: float = 0.0,
    kinds: tuple[str, ...] = EVENTS,
) -> dict[str, Any]:
    """Everything that a run went through, and what was checked at its end. AssertionError when something is wrong.

    ``seconds``: for so long an event every EVERY_S; 0: ``events``, one after the other.
    """
    jumping_clocks(folder)
    train, updates = (STEADY | SGD, DELTA) if mode == "delta" else (STEADY, {})
    with Farm(folder, nursery, parallel={"pipelines": nodes}, train=train, updates=updates) as farm:
        run = Chaos(farm, seed, nodes)
        run.kinds = kinds
        run.begin()
        began = time.monotonic()
        while time.monotonic() - began < seconds if seconds else len(run.told) < events:
            due = time.monotonic() + EVERY_S
            run.happen()
            if seconds:
                time.sleep(max(0.0, due - time.monotonic()))
        done = run.end(MORE_AT_THE_END[mode])
        checked = check(farm, run, done, mode)
        lost = [event["message"] for event in farm.events("warning")]
        took = time.monotonic() - began
    if mode == "delta":
        calm = folder.with_name(folder.name + "-calm")
        checked["undisturbed_loss"] = undisturbed(calm, nursery, nodes, round(done["samples"] / BATCH))
        assert abs(done["eval_loss"] / checked["undisturbed_loss"] - 1) < 0.02, (done, checked)
    return {
        "seed": seed,
        "nodes": nodes,
        "mode": mode,
        "seconds": round(took, 1),
        "steps": done["steps"],
        "views": done["views"],
        "eval_loss": done["eval_loss"],
        "warnings": lost,
        **checked,
        "events": run.told,
    }


def check(farm: Farm, run: Chaos, done: dict[str, Any], mode: str) -> dict[str, Any]:
    """The ledger, and the curve."""
    with closing(Store(farm.state)) as store:
        rows, view = store.steps.all(), store.views.last()
        assert view is not None
        trained = view.cursor - len(json.loads(view.redo or "[]")) + BATCH * (done["steps"] - view.step)
    counted = sum(row.samples for row in rows)
    assert counted == trained == done["samples"], (counted, trained, done["samples"])
    if mode == "delta":
        return {"samples": counted}
    assert [row.step for row in rows] == list(range(1, done["steps"] + 1)) and {row.samples for row in rows} == {BATCH}
    plain = farm.plain_losses(done["steps"])
    off = [abs(row.loss - plain[row.step - 1]) for row in rows if row.loss is not None and row.tokens == BATCH]
    part = len(rows) - len(off)  # a victim's report of its last step died with it, and with that a part of the mean
    assert part <= len(run.told), f"{part} steps without the whole report"
    assert max(off) < 1e-4, max(off)
    return {"samples": counted, "largest_difference_from_a_plain_loop": max(off), "steps_reported_in_part": part}


def undisturbed(folder: Path, nursery: Nursery, nodes: int, steps: int) -> float:
    """The final loss of the same run when nothing happens."""
    job = {"run": {"steps": steps}, "parallel": {"pipelines": nodes}, "train": STEADY | SGD, "updates": DELTA}
    with Farm(folder, nursery, pace=0.0, **job) as farm:
        farm.coordinator()
        for number in range(nodes):
            farm.node(f"n{number}")
        return float(farm.wait(lambda: farm.c.of("done"), "the undisturbed run is done", 1200)[0]["eval_loss"])


def left_behind(folder: str = "\0") -> dict[str, list[str]]:
    """Processes that stand in the run's folder, shared memory with a name of ours, descriptors of this process."""
    processes = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder in str((entry / "cwd").readlink()):
                processes.append(entry.name)
    shared = [entry.name for entry in Path("/dev/shm").glob("*farflung*")]
    return {"processes": processes, "shared": sorted(shared), "descriptors": [str(len(os.listdir("/proc/self/fd")))]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--events", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--mode", choices=("gradient", "delta"), default="gradient")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--kinds", nargs="+", choices=EVENTS, default=list(EVENTS), help="of events")
    parser.add_argument("--seconds", type=float, default=0.0, help="an event every 10 s for so long")
    parser.add_argument("--nightly", action="store_true", help="8 nodes, 30 minutes, an event every 10 s, both modes")
    wanted = parser.parse_args()
    nodes, seconds = wanted.nodes, wanted.seconds
    if wanted.nightly:
        nodes, seconds = NIGHT_NODES, seconds or NIGHT_S
    free_port()  # keeps a file open from its first call on, which nobody left behind
    torch.set_num_threads(1)  # of the plain loop: its steps are smaller than a thread is worth
    results: dict[str, Any] = {"load": [], "cores": os.cpu_count()}
    for mode in ("gradient", "delta") if wanted.nightly else (wanted.mode,):
        before = left_behind()
        with tempfile.TemporaryDirectory() as folder, contextlib.closing(Nursery()) as nursery:
            place = Path(folder) / "run"
            events, kinds = wanted.events, tuple(wanted.kinds)
            results[mode] = chaos(place, nursery, wanted.seed, events, nodes, mode, seconds, kinds)
            place = place.resolve()
        after = left_behind(str(place))
        assert after == before, f"left behind: {after}, before: {before}"
        results["load"].append(round(os.getloadavg()[2], 1))
        text = json.dumps(results, indent=1)
        print(text, flush=True)
        if wanted.output is not None:  # what one mode has shown stays, whatever the next one does
            wanted.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
