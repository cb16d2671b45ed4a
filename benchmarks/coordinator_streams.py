"""One coordinator and nodes that hold real control streams over gRPC and TLS, all of them in one other process.

    python -m benchmarks.scale --coordinator --streams [--nodes N ...] [--seconds S] [--json]

Every node has a channel of its own, beats once a second and reports a step every 10 s. What is counted is the processor
time of the coordinator's process, per second of the clock, after a minute of training: gRPC measures new connections
with pings, more and more rarely. Then one stream ends without a goodbye and its node answers no dial: seconds of the
clock, and of the coordinator's processor, until the last node has been told to start. The nodes do as little as they
can, for they share the machine: one of them opens each view, and the others take what it made of it. Each listens at a
loopback address of its own: a thousand nodes in one process may all be silent for longer than the coordinator's
patience, and as on an overloaded machine, their kernel answers the dial for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import grpc.aio

from farflung.coordinator.checkpoints.checkpoints import Checkpoints
from farflung.coordinator.data.artifacts import Artifacts
from farflung.coordinator.membership.rules import Rules
from farflung.coordinator.membership.state import TRAINING
from farflung.coordinator.run.context import RunContext
from farflung.coordinator.run.run import Run
from farflung.coordinator.serve.calls.joining import Identity
from farflung.coordinator.serve.calls.service import CoordinatorService
from farflung.coordinator.serve.collector import calm
from farflung.coordinator.store.rows import NodeRow
from farflung.coordinator.store.store import Store
from farflung.coordinator.trust.authority import load_authority
from farflung.coordinator.trust.tickets import digest
from farflung.node.io.to_coordinator.packed_views import PackedViews
from farflung.proto import control_pb2 as pb
from farflung.proto.connections import rpc
from farflung.proto.words.link import split_address
from farflung.scheduler.plans import Plan

STEP_S = 10
WARM_S = 60.0
SECRET = "simulated"


@dataclass
class Load:
    """Seconds of processor time are the coordinator's."""

    nodes: int
    begin_s: float
    """Of the clock, from the first stream to the start of the first view."""
    cpu_part: float
    """Of a core, while the nodes train."""
    change_s: float
    change_cpu_s: float
    status_s: float
    late_ms: float
    """The longest that the coordinator's event loop was late, while the nodes trained and the view changed."""
    evicted: int


class Node:
    """A control stream that answers."""

    plans: ClassVar[dict[int, Plan]] = {}
    steps: ClassVar[dict[int, int]] = {}
    packed: ClassVar[PackedViews] = PackedViews()
    """What the first node to get a view made of it: the others would take the processor that they share. A view is
    edits of the one before it, which another node may have opened."""

    def __init__(self, number: int, address: str, pinned: bytes) -> None:
        self.name, self.view, self.step = f"n{number}", 0, 0
        self.host, self.port = split_address(address_of(number, split_address(address)[1]))
        self.channel = rpc.coordinator_channel(address, pinned)
        self.chance = random.Random(self.name)
        self.started = False
        self.writing = asyncio.Lock()

    async def live(self) -> None:
        self.listens = await asyncio.start_server(lambda reader, writer: writer.close(), self.host, self.port)
        metadata = rpc.session_metadata(self.name, f"{self.name}-1", SECRET)
        call: Any = rpc.coordinator_stub(self.channel).Attend(metadata=metadata)
        self.call = call
        await self._say(pb.Report(hello=pb.Hello(session=f"{self.name}-1", holds=0)))
        beating = asyncio.create_task(self._beat())
        beating.add_done_callback(alarm)
        try:
            while (order := await call.read()) is not grpc.aio.EOF:
                await self._obey(order)
        except (grpc.aio.AioRpcError, asyncio.CancelledError, asyncio.InvalidStateError):
            pass
        finally:
            beating.cancel()

    async def die(self) -> None:
        """Without a goodbye."""
        self.listens.close()
        self.call.cancel()
        await self.channel.close(None)

    async def _say(self, report: pb.Report) -> None:
        async with self.writing:
            await self.call.write(report)

    async def _beat(self) -> None:
        await asyncio.sleep(self.chance.random())
        seconds = self.chance.randrange(STEP_S)
        while True:
            began = time.monotonic()
            await self._say(pb.Report(heartbeat=pb.Heartbeat(trainer_age=0.1, doing="computes")))
            seconds += 1
            if self.started and seconds % STEP_S == 0:
                await self._say(pb.Report(step=self._step()))
            await asyncio.sleep(max(0.0, began + 1 - time.monotonic()))

    def _step(self) -> pb.StepDone:
        self.step += 1
        before, after = self.plans[self.view].neighbours(self.name)
        return pb.StepDone(
            view=self.view,
            step=self.step,
            loss_sum=0.0 if after else 2e3,
            tokens=0 if after else 1024,
            samples=0 if after else 4,
            seconds=STEP_S,
            compute_seconds=6.0,
            sent=[pb.Sent(peer=peer, bytes=10**7, beside=1.0) for peer in (before, after) if peer],
        )

    async def _obey(self, order: pb.Order) -> None:
        kind = order.WhichOneof("kind")
        if kind == "measure":
            found = [
                pb.LinkMeasurement(to=peer.name, latency_s=self.chance.uniform(0.002, 0.1), bandwidth_bps=1e8)
                for peer in order.measure.peers
            ]
            await self._say(pb.Report(links=pb.Links(links=found)))
        elif kind == "flush":
            self.started = False
            flushed = pb.Flushed(view=order.flush.view, step=self.step)
            plan = self.plans.get(self.view)
            if plan is not None and self.name in plan:
                stage = plan.stage_of(self.name)
                first, last = plan.stages[stage]
                flushed.layers.extend(range(first, last + 1))
                flushed.sections.add(section=f"stage-{stage}", round=7, chain=7)
            await self._say(pb.Report(flushed=flushed))
        elif kind == "packed":
            number = order.packed.number
            if number not in self.steps:
                view = self.packed.open(order.packed)
                self.plans[number], self.steps[number] = Plan.from_json(view.plan), view.step
            self.view, self.step = number, self.steps[number]
            await self._say(pb.Report(prepared=pb.Prepared(view=number)))
        elif kind == "start" and self.name in self.plans[self.view]:
            self.started = True


def address_of(number: int, port: int) -> str:
    """Where a node listens: the coordinator has this port at 127.0.0.1 alone."""
    return f"127.1.{number // 250}.{number % 250 + 1}:{port}"


def alarm(task: asyncio.Task[None]) -> None:
    """Nobody waits for a node: one that fails says so, or it would look like one that is silent."""
    if not task.cancelled() and (error := task.exception()) is not None:
        print(f"a node of the benchmark failed: {error!r}", file=sys.stderr)


async def be_nodes(count: int, address: str, pinned: bytes) -> None:
    """All of them, until there is no more input; a line of it is the name of a node that dies."""
    nodes = {f"n{number}": Node(number, address, pinned) for number in range(count)}
    tasks = {}
    for name, node in nodes.items():
        tasks[name] = asyncio.create_task(node.live())
        tasks[name].add_done_callback(alarm)
        await asyncio.sleep(0.002)
    while line := await asyncio.to_thread(sys.stdin.readline):
        await nodes[line.strip()].die()


async def measure(count: int, seconds: int, warm: float = WARM_S) -> Load:
    """A run of ``count`` nodes, one of which dies."""
    from farflung.benchmarks.coordinator_load import LAYERS, job_of

    job, facts = job_of(count)
    with TemporaryDirectory() as folder, closing(Store(Path(folder), create=True)) as store:
        rules = Rules("delta", job.train.batch, 1, 1, facts.samples, LAYERS, wanted=count)
        checkpoints = Checkpoints(Path(folder) / "checkpoints", job.checkpoint.keep, {})
        left = Leavers(time.monotonic())
        context = RunContext(job=job, facts=facts, store=store, checkpoints=checkpoints, emit=left.hear)
        run = Run(context, rules)
        run.record(Path(folder) / "events")
        authority = load_authority(Path(folder) / "identity")
        server = grpc.aio.server(options=rpc.server_options())
        credentials = rpc.coordinator_server_credentials(authority.certificate, authority.key)
        port = server.add_secure_port("127.0.0.1:0", credentials)
        service = CoordinatorService(run, Artifacts({}, checkpoints), Identity("run", authority, Path(folder)))
        rpc.add_CoordinatorServicer_to_server(service, server)
        await server.start()
        device = json.dumps({"kind": "cuda", "tflops": 30.0, "memory_bytes": 24 << 30})
        for number in range(count):
            name, listens = f"n{number}", address_of(number, port)
            run.admit(NodeRow(name, f"{name}-1", digest(SECRET), "key", listens, device, joined=time.time()))
        calm()
        ticking, late = asyncio.create_task(run.tick()), Lateness()
        pinned = Path(folder) / "pinned.pem"
        pinned.write_bytes(authority.certificate)
        words = ["-m", "farflung.benchmarks.coordinator_streams", str(count), f"127.0.0.1:{port}", str(pinned)]
        child = await asyncio.create_subprocess_exec(sys.executable, *words, stdin=asyncio.subprocess.PIPE)
        assert child.stdin is not None
        try:
            began = time.monotonic()
            await trains(run, 1)
            begin = time.monotonic() - began
            late.task = asyncio.create_task(late.watch())
            await asyncio.sleep(warm)
            wall, cpu = time.monotonic(), time.process_time()
            await asyncio.sleep(seconds)
            part = (time.process_time() - cpu) / (time.monotonic() - wall)
            evicted = count - len(run.state.nodes)
            assert run.state.view is not None
            victim = run.state.view.plan.pipelines[0][0]
            number = run.state.number
            wall, cpu = time.monotonic(), time.process_time()
            child.stdin.write(f"{victim}\n".encode())
            await trains(run, number + 1)
            while any(stream.queue.qsize() for stream in run.streams.all()):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            change, change_cpu = time.monotonic() - wall, time.process_time() - cpu
            cpu = time.process_time()
            json.dumps(run.status(Path(folder)))
            status = time.process_time() - cpu
            evicted += count - 1 - len(run.state.nodes)
            if evicted:
                print(left.words(), file=sys.stderr)
        finally:
            late.task.cancel()
            ticking.cancel()
            await run.stop("the benchmark is over", 0.0)
            child.stdin.close()
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
            await server.stop(0)
    return Load(count, begin, part, change, change_cpu, status, 1e3 * late.most, evicted)


class Leavers:
    """Why nodes left, and when: a second of the clock and a reason, with how many."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.counts: Counter[tuple[int, str, str]] = Counter()

    def hear(self, event: dict[str, Any]) -> None:
        if event["event"] in ("left", "warning"):
            why = str(event.get("why") or event.get("message"))
            why = why.replace(str(event.get("node") or "?"), "NODE")
            self.counts[int(time.monotonic() - self.began), event["event"], why] += 1

    def words(self) -> str:
        return "\n".join(f"after {at} s: {what} {many} times: {why}" for (at, what, why), many in self.counts.items())


class Lateness:
    """How late the event loop is."""

    def __init__(self) -> None:
        self.most = 0.0
        self.task: asyncio.Task[None] = asyncio.create_task(asyncio.sleep(0))

    async def watch(self) -> None:
        while True:
            due = time.monotonic() + 0.02
            await asyncio.sleep(0.02)
            self.most = max(self.most, time.monotonic() - due)


async def trains(run: Run, number: int) -> None:
    """Until a view of at least that number trains."""
    until = time.monotonic() + 300
    while run.state.phase != TRAINING or run.state.number < number:
        if time.monotonic() > until:
            raise AssertionError(f"the run does not get there: {run.state.phase}, {run.state.why[:300]}")
        await asyncio.sleep(0.005)


if __name__ == "__main__":
    asyncio.run(be_nodes(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]).read_bytes()))
