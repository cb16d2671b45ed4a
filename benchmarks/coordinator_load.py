"""What one coordinator costs: simulated nodes, real messages, the coordinator's own code and database.

    python -m benchmarks.scale --coordinator [--nodes N ...] [--seconds S] [--json]

N nodes, in pipelines of 8 stages, join, measure their links, flush, prepare and train in simulated time: every report
is serialised by the node and parsed by the coordinator, every order the other way round, and nothing waits. What is
counted is the processor time of the coordinator, without that of the simulated nodes. A heartbeat comes every second
from each, a report of a step every 10 s. Then a node dies: seconds from its loss to the last order sent, the search for
the new plan included, and how many bytes of orders that took. At the end the status is asked for as JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop

from farflung.benchmarks import coordinator_streams
from farflung.coordinator.checkpoints.checkpoints import Checkpoints
from farflung.coordinator.membership.rules import Rules
from farflung.coordinator.membership.state import TRAINING
from farflung.coordinator.run.context import RunContext
from farflung.coordinator.run.nodes.attendance import Attendance
from farflung.coordinator.run.run import TICK_S, Run
from farflung.coordinator.store.rows import NodeRow
from farflung.coordinator.store.store import Store
from farflung.coordinator.trust.tickets import digest
from farflung.job.data.facts import Facts, LayerProfile, Profile
from farflung.job.schema import Job
from farflung.node.io.to_coordinator.packed_views import PackedViews
from farflung.proto import control_pb2 as pb
from farflung.scheduler.plans import Plan

STAGES, LAYERS = 8, 24
STEP_S = 10.0
LINES = (50e6, 100e6, 200e6, 1e9)
REGIONS = 10
MOST_PLANNED = 3000
"""Nodes up to which the scheduler plans: it has a matrix of all links."""


@dataclass
class Load:
    """Processor seconds of the coordinator, unless it says otherwise."""

    nodes: int
    begin_s: float
    """From the first join to the start of the first view."""
    cpu_part: float
    """Of a core, while the nodes train."""
    tick_ms: float
    change_s: float
    """From a node's loss to the last order of the view without it, the search for its plan included."""
    plan_s: float
    """That search, in a process of its own."""
    change_bytes: float
    """Of orders, in MB."""
    status_s: float
    status_bytes: float
    """In MB."""
    evicted: int
    """Nodes that were put out, though all but one beat."""


def job_of(nodes: int) -> tuple[Job, Facts]:
    """A model of LAYERS blocks in pipelines of STAGES."""
    pipelines = max(1, nodes // STAGES)
    job = Job.model_validate(
        {
            "run": {"name": "scale", "steps": 1_000_000},
            "model": {"build": "none:none"},
            "data": {"build": "none:none"},
            "train": {"batch": 4 * pipelines, "microbatch": 1, "eval_every": 0},
            "parallel": {"stages": STAGES, "pipelines": pipelines},
            "updates": {"mode": "delta", "codec": "int8", "overlap": 1},
        }
    )
    layers = [
        LayerProfile(name=f"block {at}", parameters=10**8, flops_per_sample=3e11, activation_elements_per_sample=10**6)
        for at in range(LAYERS)
    ]
    facts = Facts(
        samples=10**7,
        validation_samples=100,
        context=1024,
        vocabulary=50_000,
        token_dtype="uint16",
        steps=1_000_000,
        tokens_digest="",
        profile=Profile(layers=layers, tied=False, family="build"),
        artifacts={},
    )
    return job, facts


class Nodes:
    """The simulated ones. ``spent``: their own processor time."""

    def __init__(self, run: Run, count: int) -> None:
        self.run, self.spent, self.bytes = run, 0.0, 0
        self.chance = random.Random(1)
        self.names = [f"n{number}" for number in range(count)]
        self.line = {name: self.chance.choice(LINES) for name in self.names}
        self.region = {name: self.chance.randrange(REGIONS) for name in self.names}
        self.streams: dict[str, Attendance] = {}
        self.packed = {name: PackedViews() for name in self.names[:: max(1, count // 1000)]}
        """Of a thousand of them: the others take what these make of a view."""
        self.plan: Plan | None = None
        self.view = self.step = 0

    def join(self, name: str) -> None:
        device = json.dumps({"kind": "cuda", "tflops": 30.0, "memory_bytes": 24 << 30})
        self.run.admit(
            NodeRow(
                name,
                f"{name}-1",
                digest("x"),
                "key",
                f"10.0.0.1:{name[1:]}",
                device,
                joined=time.time(),
            )
        )
        self.streams[name] = self.run.attach(name, pb.Hello(session=f"{name}-1", holds=0))

    def say(self, name: str, **kind: object) -> None:
        """One report, through bytes."""
        began = time.process_time()
        data = pb.Report(**kind).SerializeToString()  # type: ignore[arg-type]
        self.spent += time.process_time() - began
        self.run.report(self.streams[name], pb.Report.FromString(data))

    def beat(self) -> None:
        for name in self.streams:
            self.say(name, heartbeat=pb.Heartbeat(trainer_age=0.1, doing="computes"))

    def answer(self) -> bool:
        """Do what the orders say, whether there were any."""
        some = False
        for name, stream in list(self.streams.items()):
            while not stream.queue.empty():
                order = stream.queue.get_nowait()
                if order is None:
                    self.streams.pop(name, None)
                    break
                data = order.SerializeToString()
                self.bytes += len(data)
                some = True
                self._obey(name, order)
        return some

    def _obey(self, name: str, order: pb.Order) -> None:
        kind = order.WhichOneof("kind")
        if kind == "measure":
            found = [
                pb.LinkMeasurement(
                    to=peer.name, latency_s=self._latency(name, peer.name), bandwidth_bps=self.line[name]
                )
                for peer in order.measure.peers
            ]
            self.say(name, links=pb.Links(links=found))
        elif kind == "flush":
            layers, sections = (), []
            if self.plan is not None and name in self.place:
                stage = self.place[name]
                first, last = self.plan.stages[stage]
                layers = range(first, last + 1)
                sections = [pb.SectionState(section=f"stage-{stage}", round=self.step, chain=7)]
            self.say(
                name, flushed=pb.Flushed(view=order.flush.view, step=self.step, sections=sections, layers=list(layers))
            )
        elif kind == "packed":
            pinned = self.run.state.pinned
            assert pinned is not None
            began = time.process_time()
            if name in self.packed:
                self.packed[name].open(order.packed)
            self.spent += time.process_time() - began
            if pinned.number != self.view:
                began = time.process_time()
                self.plan, self.view = pinned.plan, pinned.number
                self.place = {one: self.plan.stage_of(one) for row in self.plan.pipelines for one in row}
                self.spent += time.process_time() - began
            prints = []
            if name in self.place:
                prints = [pb.Fingerprint(section=f"stage-{self.place[name]}", round=self.step, content=5)]
            self.say(name, prepared=pb.Prepared(view=self.view, fingerprints=prints))

    def _latency(self, one: str, other: str) -> float:
        apart = abs(self.region[one] - self.region[other])
        return 0.002 + 0.015 * apart

    def finish_step(self, name: str) -> None:
        assert self.plan is not None
        before, after = self.plan.neighbours(name)
        sent = [pb.Sent(peer=peer, bytes=10**7, rate_bps=0.0, beside=1.0) for peer in (before, after) if peer]
        last = after is None
        done = pb.StepDone(
            view=self.view,
            step=self.step + 1,
            loss_sum=2.0e3 if last else 0.0,
            tokens=1024 if last else 0,
            samples=4 if last else 0,
            seconds=STEP_S,
            compute_seconds=6.0,
            bytes_updates=10**6,
            bytes_activations=10**7,
            wire_seconds=2.0,
            waiting_seconds=1.0,
            notes='{"hits": 1}',
            sent=sent,
        )
        self.say(name, step=done)


def by_name(names: tuple[str, ...], current: Plan | None, broken: frozenset[tuple[str, str]]) -> Plan:
    """Pipelines in the order of names, for more nodes than the search takes."""
    rows = [names[at : at + STAGES] for at in range(0, len(names) - STAGES + 1, STAGES)]
    share, rest = divmod(4 * (len(names) // STAGES), len(rows))
    width = LAYERS // STAGES
    return Plan(
        tuple(rows),
        tuple((stage * width, stage * width + width - 1) for stage in range(STAGES)),
        tuple(share + (at < rest) for at in range(len(rows))),
        dict.fromkeys(names[len(rows) * STAGES :], "one too many"),
    )


async def measure(count: int, seconds: int = 20) -> Load:
    """Everything that happens to a run of ``count`` nodes, at most one of which dies."""
    job, facts = job_of(count)
    planner = by_name if count > MOST_PLANNED else None
    with TemporaryDirectory() as folder, closing(Store(Path(folder), create=True)) as store:
        clock = Clock()
        rules = Rules("delta", job.train.batch, 1, 1, facts.samples, LAYERS, wanted=count)
        checkpoints = Checkpoints(Path(folder) / "checkpoints", job.checkpoint.keep, {})
        context = RunContext(
            job=job, facts=facts, store=store, checkpoints=checkpoints, emit=lambda event: None, clock=clock
        )
        run = Run(context, rules, planner)
        run.record(Path(folder) / "events")
        nodes = Nodes(run, count)
        for name in nodes.names:
            nodes.join(name)
        begin = await until(run, nodes, clock, lambda: run.state.phase == TRAINING)
        # ---- training
        spent, ticks = 0.0, 0.0
        for second in range(seconds):
            own, began = nodes.spent, time.process_time()
            nodes.beat()
            for index, name in enumerate(list(nodes.streams)):
                if (index + second) % STEP_S == 0 and name in nodes.place:
                    nodes.finish_step(name)
            if second % STEP_S == STEP_S - 1:
                nodes.step += 1
            for _ in range(round(1 / TICK_S)):
                clock.now += TICK_S
                at = time.process_time()
                run.pass_time()
                ticks += time.process_time() - at
            nodes.answer()
            spent += time.process_time() - began - (nodes.spent - own)
        evicted = count - len(run.state.nodes)
        # ---- a loss
        victim = next(name for name in nodes.names if name in nodes.place)
        stream = nodes.streams.pop(victim)
        nodes.bytes = 0
        searched = run.planning.searches.spent
        view = run.state.number
        own, began = nodes.spent, time.process_time()
        run.report(stream, pb.Report(goodbye=pb.Goodbye(why="it died")))
        change = time.process_time() - began - (nodes.spent - own)
        change += await until(run, nodes, clock, lambda: run.state.phase == TRAINING and run.state.number > view)
        evicted += max(0, count - 1 - len(run.state.nodes))
        began = time.process_time()
        status = json.dumps(run.status(Path(folder)))
        status_s = time.process_time() - began
        return Load(
            count,
            begin,
            spent / seconds,
            1e3 * ticks / (seconds / TICK_S),
            change + run.planning.searches.spent - searched,
            run.planning.searches.spent - searched,
            nodes.bytes / 1e6,
            status_s,
            len(status) / 1e6,
            evicted,
        )


class Clock:
    """Simulated seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def until(run: Run, nodes: Nodes, clock: Clock, there: Callable[[], bool]) -> float:
    """Let time pass until something is so; processor seconds of the coordinator."""
    own, began = nodes.spent, time.process_time()
    beats = 0
    for _ in range(3000):
        clock.now += 1e-3  # what nodes say comes between two ticks
        busy = nodes.answer()
        await asyncio.sleep(0)
        while run.deciding.is_planning:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        if there():
            nodes.answer()
            return time.process_time() - began - (nodes.spent - own)
        if not busy:
            clock.now += TICK_S
            beats += 1
            if beats % 5 == 0:
                nodes.beat()
            run.pass_time()
    raise AssertionError(f"the run does not get there: {run.state.phase}, {run.state.why}")


def report(counts: list[int], seconds: int, as_json: bool, streams: bool) -> None:
    """Prints a row for each number of nodes. ``streams``: over gRPC (coordinator_streams.py)."""
    names = [field.name for field in fields(coordinator_streams.Load if streams else Load)]
    once: Callable[[int, int], Any] = coordinator_streams.measure if streams else measure
    if not as_json:
        print("  ".join(f"{name:>12}" for name in names))
    found = []
    for count in counts:
        found.append(uvloop.run(once(count, seconds)))
        if not as_json:
            print("  ".join(f"{getattr(found[-1], name):>12.4g}" for name in names), flush=True)
    if as_json:
        print(json.dumps([vars(one) for one in found]))
