"""A run that never was, for the tests and pictures of the page: six nodes, four regions, one narrow upload."""

import json
import math
import random
from pathlib import Path
from typing import Any

from farflung.coordinator.observe.history import History
from farflung.coordinator.observe.observed import Observed
from farflung.coordinator.observe.status import status_of
from farflung.coordinator.store.rows import CheckpointRow, EvalRow, NodeRow, SetRow, StepRow, ViewRow
from farflung.coordinator.store.store import Store
from farflung.proto.control_pb2 import Sent, StepDone
from farflung.scheduler.plans import Plan

NODES = {  # name: (host, device, tflops)
    "frankfurt-1": ("10.1.0.4", "NVIDIA L4 24GB", 92.0),
    "frankfurt-2": ("10.1.0.5", "NVIDIA L4 24GB", 91.0),
    "oregon-1": ("10.2.0.9", "NVIDIA A10G 24GB", 118.0),
    "oregon-2": ("ip-10-2-0-7.us-west-2.compute.internal", "NVIDIA A10G 24GB", 117.0),
    "attic": ("192.0.2.31", "NVIDIA GeForce RTX 3090 Ti 24 GB", 61.0),
    "spare-tokyo": ("10.3.0.2", "NVIDIA T4 16GB", 38.0),
}
PIPELINES = (("frankfurt-1", "attic"), ("frankfurt-2", "oregon-1"))
SECONDS = 1.9


class MadeUpRun:
    """Its database, what was observed of it, and the status that follows. It is the page's Source too."""

    def __init__(self, folder: Path, steps: int = 1200, seed: int = 3) -> None:
        self.folder, self.now, self.draw = folder, 1_800_000_000.0, random.Random(seed)
        self.store, self.observed, self.history = Store(folder, create=True), Observed(), History()
        self.plan = Plan(
            PIPELINES,
            ((0, 5), (6, 13)),
            (5, 3),
            {"spare-tokyo": "its 210 ms to everybody would slow every step down", "oregon-2": "held in reserve"},
        )
        self.step, self.phase = 0, "training"
        self.offered: list[str] = []
        self._fill()
        for _ in range(steps):
            self.train()

    def _fill(self) -> None:
        store = self.store
        job = {"run": {"name": "shakespeare-1b"}}
        facts = {"steps": 4000}
        values = {"run": "5f2c9a01d3e7b864", "job": json.dumps(job), "facts": json.dumps(facts), "phase": "training"}
        values |= {
            "why": "view 3 trains: attic joined; 2 pipelines of 2 stages",
            "term": "1",
            "address": "10.1.0.2:7070",
        }
        for key, value in values.items():
            store.put(key, value)
        for number, (name, (host, device, tflops)) in enumerate(NODES.items()):
            about = json.dumps({"kind": "cuda", "description": device, "tflops": tflops})
            joined = self.now - 5000 + number
            store.nodes.put(NodeRow(name, f"s{number}", "", "", f"{host}:4{number}00", about, joined=joined))
        store.nodes.put(NodeRow("spot-7", "s9", "", "", "10.2.0.8:4000", "{}", joined=self.now - 4000))
        store.nodes.left("spot-7", "s9", self.now - 2100, "spot-7 left: its machine is being taken away (SIGTERM)")
        for source in NODES:
            for target in NODES:
                if source < target:
                    near = source.partition("-")[0] == target.partition("-")[0] and "-" in source
                    latency, rate = (0.0004, 9.4e9) if near else (0.071, 180e6)
                    if "attic" in (source, target):
                        latency, rate = 0.043, 92e6
                    if "spare-tokyo" in (source, target):
                        latency, rate = 0.21, 60e6
                    store.links.put(source, target, latency, rate, self.now)
        store.links.put("attic", "frankfurt-1", 0.043, 20e6, self.now)
        store.links.put("frankfurt-1", "attic", 0.043, 92e6, self.now)
        store.links.put("oregon-1", "attic", 0.061, 88e6, self.now)
        store.links.put("attic", "oregon-1", 0.061, 20e6, self.now)
        old = Plan((("frankfurt-1", "spot-7"), ("frankfurt-2", "oregon-1")), ((0, 5), (6, 13)), (4, 4))
        for number, plan, step, why, ago in (
            (1, Plan((("frankfurt-1",), ("frankfurt-2",)), ((0, 13),), (4, 4)), 0, "2 nodes in: the run starts", 5000),
            (2, old, 180, "oregon-1, spot-7 joined; 2 pipelines of 2 stages", 3900),
            (3, self.plan, 610, "spot-7 left: its machine is being taken away (SIGTERM); attic takes its place", 2098),
        ):
            when = self.now - ago
            store.views.put(ViewRow(number, plan.to_json(), "[]", step, 0, "[]", checkpoint=-1, why=why, time=when))
        store.checkpoints.put(CheckpointRow(1000, "runs/shakespeare-1b/checkpoints/1000", 0, "[]", self.now - 900))
        store.warnings.add(self.now - 1300, "attic", "update refused: values that are not finite")

    def train(self) -> None:
        """One more step of everybody."""
        self.step += 1
        self.now += SECONDS
        n, noise = self.step, self.draw.gauss
        loss = 2.35 + 8.4 * math.exp(-n / 190) / (1 + n / 800) + noise(0, 0.03)
        slow = 1.0 if n < 610 else 1.22
        seconds = SECONDS * slow * (1 + abs(noise(0, 0.03)))
        for node, compute, codec, wire, sent in (
            ("frankfurt-1", 0.46, 0.05, 0.30, {"attic": 2.9e6, "frankfurt-2": 2.2e6}),
            ("attic", 0.41, 0.07, 0.44, {"frankfurt-1": 2.6e6, "oregon-1": 1.9e6}),
            ("frankfurt-2", 0.47, 0.05, 0.21, {"oregon-1": 1.8e6, "frankfurt-1": 2.2e6}),
            ("oregon-1", 0.33, 0.05, 0.24, {"frankfurt-2": 1.8e6, "attic": 1.9e6}),
        ):
            jitter = 1 + noise(0, 0.02)
            report = StepDone(view=3, step=n, seconds=seconds, compute_seconds=compute * seconds * jitter)
            report.codec_seconds, report.wire_seconds = codec * seconds, wire * seconds * jitter
            report.waiting_seconds = (
                0.97 * seconds - report.compute_seconds - report.codec_seconds - report.wire_seconds
            )
            report.sent.extend(Sent(peer=peer, bytes=int(count * slow)) for peer, count in sent.items())
            self.observed.step(node, report, self.now)
        row = StepRow(
            *(n, 3, loss, 32, 32 * 1024, seconds),
            bytes_updates=int(3.9e6 * jitter),
            bytes_activations=int(4.6e6 * jitter),
            bytes_other=3000,
            bytes_dense=int(212e6),
            bytes_dense_updates=int(144e6),
            notes="",
            time=self.now,
        )
        self.store.steps.put(row)
        self.history.step(row, self.observed.parts_of_step(n))
        if n % 100 == 0:
            tested = EvalRow(n, loss + 0.06, 1000, None, self.now)
            self.store.evals.put(tested)
            sets = [SetRow(n, "wiki", loss + 0.4, 0.3, 1000), SetRow(n, "code", loss - 0.5, 0.5, 1000)]
            self.store.evals.put_sets(sets)
            self.history.evaluation(tested)

    # ---- the page's Source -------------------------------------------------------------------

    def record(self) -> dict[str, Any]:
        """The status record, as the coordinator makes it."""
        live = {name: {"attending": True, "heard_s": 0.4, "doing": f"trains step {self.step + 1}"} for name in NODES}
        for name, parts in self.observed.nodes(self.now).items():
            live[name] = {**live[name], **parts}
        for name in self.plan.spares:
            live[name]["doing"] = "is a spare"
        self.store.put("phase", self.phase)
        return status_of(self.store, self.folder, True, live, self.observed.links(self.now))

    def views(self) -> list[ViewRow]:
        return self.store.views.all()

    def commands(self) -> list[str]:
        return self.offered
