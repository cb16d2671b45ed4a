"""A coordinator in this process, and fake nodes that speak its protocol over real gRPC, without torch."""

import asyncio
import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Callable

import grpc.aio
import pytest
import s3_server
from coordinator_process import CoordinatorProcess, pairs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from ports import free_port
from postgres import running_server
from tensor_files import stage_file

from farflung import __version__
from farflung.coordinator.serve.serve import run_coordinator
from farflung.coordinator.serve.starting.options import Options
from farflung.job.data.facts import Facts, LayerProfile, Profile
from farflung.job.data.sampling import Position, of_runs
from farflung.job.schema import Job
from farflung.proto import PROTOCOL
from farflung.proto import control_pb2 as pb
from farflung.proto.connections import rpc
from farflung.proto.words.link import parse_link
from farflung.scheduler.plans import Plan

JOB = """\
[run]
steps = 12
seed = 1
[model]
family = "gpt2"
layers = 2
width = 8
heads = 2
context = 16
[data]
text = ["text.txt"]
validation = 0.1
[train]
batch = 8
microbatch = 2
eval_every = 4
[parallel]
stages = 2
pipelines = 2
[checkpoint]
every = 4
keep = 2
"""

LAYERS = [
    LayerProfile(name=name, parameters=64_000, flops_per_sample=1e9, activation_elements_per_sample=128)
    for name in ("embedding", "block 0", "block 1", "head")
]
PROFILE = Profile(layers=LAYERS, tied=False, family="gpt2").model_dump_json()
PROFILE_COMMAND = (sys.executable, "-c", f"import sys; sys.stdin.read(); print({PROFILE!r})")
TIMING = {"settle_s": 0.2, "measure_s": 3.0, "return_s": 2.0, "last_checkpoint_s": 5.0, "save_s": 5.0}


class Coordinator:
    """A coordinator on this event loop; its events in order."""

    def __init__(self, options: Options) -> None:
        self.events: list[dict] = []
        self.stop, self.at_once = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(run_coordinator(options, self.events.append, self.stop, self.at_once))
        self.state = options.state

    async def event(self, kind, number=1, timeout=120.0, **keys):
        """The ``number``-th event of that kind with these values, waited for."""
        for _ in range(int(timeout / 0.02)):
            found = [
                one
                for one in self.events
                if one["event"] == kind and all(one.get(key) == value for key, value in keys.items())
            ]
            if len(found) >= number:
                return found[number - 1]
            if self.task.done():
                await self.task
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.02)
        raise AssertionError(f"no event {kind} {keys} in {self.events}")

    @property
    async def link(self):
        return parse_link((await self.event("listening"))["link"])

    async def end(self):
        self.stop.set()
        return await asyncio.wait_for(self.task, 120)


class FakeNode:
    """Joins, answers, and pretends to train: its weights are the list of the step numbers that went into them."""

    def __init__(self, link, name, key=None, step_s=0.01, listen="127.0.0.1", base=7):
        self.link, self.name, self.step_s, self.host = link, name, step_s, listen
        self.key = key or ec.generate_private_key(ec.SECP256R1())
        self.layers: list[int] = []
        self.server: asyncio.Server | None = None
        self.writing = asyncio.Lock()
        self.tasks: list[asyncio.Task] = []
        self.training: asyncio.Task | None = None
        self.step = self.ready = 0
        self.peers: dict[str, FakeNode] = {}
        self.view: pb.View | None = None
        self.pending: pb.StepDone | None = None
        self.orders: list[pb.Order] = []
        self.stopped: pb.Stop | None = None
        self.refuse_to_prepare = False
        self.loss = 2.5
        self.base = base
        """What the frozen weights of every layer hash to."""

    async def join(self, **changes):
        """The reply; the node listens and holds what the coordinator gave."""
        self.server = await asyncio.start_server(lambda reader, writer: writer.close(), self.host, 0)
        self.port = self.server.sockets[0].getsockname()[1]
        self.authority = b""
        csr = b""
        if not self.link.insecure:
            self.authority = await asyncio.to_thread(self._pinned)
            subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
            made = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(self.key, hashes.SHA256())
            csr = made.public_bytes(serialization.Encoding.PEM)
        self.channel = rpc.coordinator_channel(self.link.address, self.authority)
        self.stub = rpc.coordinator_stub(self.channel)
        fields = {
            "version": __version__,
            "protocol": PROTOCOL,
            "run": self.link.run,
            "ticket": self.link.ticket,
            "name": self.name,
            "address": f"{self.host}:{self.port}",
            "certificate_request": csr,
            "device": pb.Device(kind="cpu", description="fake", tflops=1.0, memory_bytes=1 << 33, cores=2),
        }
        reply = await self.stub.Join(pb.JoinRequest(**{**fields, **changes}), timeout=60)
        if not reply.refused:
            self.name, self.session = reply.name, reply.session
            self.metadata = rpc.session_metadata(reply.name, reply.session, reply.secret)
            self.job, self.facts = Job.model_validate_json(reply.job), Facts.model_validate_json(reply.facts)
        return reply

    def _pinned(self):
        import ssl

        pem = ssl.get_server_certificate((self.link.host, self.link.port))
        assert hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).digest() == self.link.fingerprint
        return pem.encode()

    async def attend(self):
        self.channel = rpc.coordinator_channel(self.link.address, self.authority)
        self.stub = rpc.coordinator_stub(self.channel)
        self.call = self.stub.Attend(metadata=self.metadata)
        number = self.view.number if self.view else 0
        await self.call.write(pb.Report(hello=pb.Hello(session=self.session, view=number)))
        self.tasks = [asyncio.create_task(self._orders()), asyncio.create_task(self._beat())]
        return self

    async def _beat(self):
        while True:
            await asyncio.sleep(0.5)
            await self.say(heartbeat=pb.Heartbeat(doing="pretending"))

    async def _orders(self):
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async for order in self.call:
                self.orders.append(order)
                await self._obey(order)
                if self.stopped:
                    await self.say(goodbye=pb.Goodbye(why="told to"))
                    async with self.writing:
                        await self.call.done_writing()

    async def say(self, **report):
        await asyncio.shield(self._write(pb.Report(**report)))  # a write that is broken off would end the stream

    async def _write(self, report):
        async with self.writing:
            await self.call.write(report)

    async def _obey(self, order):
        kind = order.WhichOneof("kind")
        if kind == "measure":
            links = [
                pb.LinkMeasurement(to=peer.name, latency_s=0.001, bandwidth_bps=1e8) for peer in order.measure.peers
            ]
            await self.say(links=pb.Links(links=links))
        elif kind == "flush":
            self.stop_training()
            sections = [pb.SectionState(section=f"layer-{layer}", round=self.step, chain=7) for layer in self.layers]
            answer = pb.Flushed(view=order.flush.view, step=self.step, ready_step=self.ready, norm=1.0)
            answer.layers.extend(self.layers)
            answer.sections.extend(sections)
            if self.pending is not None:
                answer.pending.CopyFrom(self.pending)
            await self.say(flushed=answer)
        elif kind == "leave":
            await self.say(leaving=pb.Leaving(why=order.leave.why, stays=order.leave.stays, asked=True))
        elif kind == "view" and not self.refuse_to_prepare:
            self.stop_training()  # a stream that opens again may bring what has come before
            self.view, self.pending = order.view, None
            self.job = Job.model_validate_json(order.view.job)
            self.plan = Plan.from_json(order.view.plan)
            self.step = self.ready = order.view.step
            self.layers = []
            if order.view.checkpoint > 0:
                await self.read(f"checkpoint/{order.view.checkpoint}/manifest.json")
            if self.name in self.plan.nodes:
                first, last = self.plan.stages[self.plan.stage_of(self.name)]
                self.layers = list(range(first, last + 1))
            bases = [pb.Base(layer=layer, content=self.base) for layer in self.layers]
            prepared = pb.Prepared(view=order.view.number, fingerprints=self._prints(), bases=bases)
            await self.say(prepared=prepared)
        elif kind == "start" and self.name in self.plan.nodes:
            self.stop_training()  # two that count up the same steps would leave out reports
            self.training = asyncio.create_task(self._train())
        elif kind == "start" and any(one.node == self.name for one in self.view.shadows):
            await self.say(caught_up=pb.CaughtUp(view=self.view.number, failed="a made-up node has no weights"))
        elif kind == "stop":
            self.stop_training()
            self.stopped = order.stop

    def _prints(self):
        return [pb.Fingerprint(section=f"layer-{layer}", round=self.step, content=self.step) for layer in self.layers]

    def stop_training(self):
        if self.training is not None:
            self.training.cancel()
            self.training = None

    async def _train(self):
        view, stage = self.view, self.plan.stage_of(self.name)
        last_stage = stage == len(self.plan.stages) - 1
        position = Position(view.step, view.cursor, of_runs(view.redo_runs, view.cursor))
        if view.save and self.plan.keeper(stage) == self.name:
            await self.store(view.step, f"stage-{stage}.safetensors", position)
        while self.step < self.job.run.steps:
            await asyncio.sleep(self.step_s)
            done = pb.StepDone(view=view.number, step=self.step + 1, seconds=self.step_s)
            done.bytes_updates, done.bytes_dense = 10, 100
            if last_stage:
                share = self.plan.microbatches[self.plan.pipeline_of(self.name)] * self.job.train.microbatch
                done.samples, done.tokens, done.loss_sum = share, share * 16, share * 16 * self.loss
            self.ready, self.pending = self.step + 1, done
            while not all(self._is_ready(name) for name in self.plan.nodes):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            self.step, self.pending = self.step + 1, None
            await self.say(step=done)
            if last_stage and self.step % self.job.train.eval_every == 0:
                await self.say(eval=pb.EvalDone(view=view.number, step=self.step, loss_sum=8 * self.loss, tokens=10))
            if self.step % self.job.checkpoint.every == 0 and self.plan.keeper(stage) == self.name:
                after = position.after(self.step, self.job.train.batch)
                await self.store(self.step, f"stage-{stage}.safetensors", after)
        await self.say(finished=pb.Finished(view=view.number, step=self.step, fingerprints=self._prints()))

    def _is_ready(self, name):
        """Whether a member holds the results of this node's next step: the commit of ``gradient`` mode."""
        peer = self.peers[name]
        return peer.view is not None and peer.view.number == self.view.number and peer.ready > self.step

    async def store(self, step, name, position=None, data=None, **changes):
        data = data if data is not None else self.content(step)
        files = len(self.plan.stages) if self.view else 2
        if position is None and self.view:
            start = Position(self.view.step, self.view.cursor, of_runs(self.view.redo_runs, self.view.cursor))
            position = start.after(step, self.job.train.batch)
        meta = json.dumps({"cursor": position.cursor if position else 0, "redo": [], "rounds": {name: step}})
        shards = []
        for offset in range(0, len(data), 1 << 20):
            last = offset + (1 << 20) >= len(data)
            shard = pb.Shard(step=step, file=name, offset=offset, data=data[offset : offset + (1 << 20)], last=last)
            shard.view = self.view.number if self.view else 0
            if last:
                shard.digest, shard.files, shard.meta = hashlib.sha256(data).digest(), files, meta
            for key, value in changes.items():
                setattr(shard, key, value)
            shards.append(shard)
        return await self.stub.Store(iter(shards), metadata=self.metadata)

    def content(self, step):
        """The file of this node's stage."""
        first, last = self.plan.stages[self.plan.stage_of(self.name)]
        layers = {f"layer-{layer}": self.facts.profile.layers[layer].parameters for layer in range(first, last + 1)}
        return stage_file(layers, fill=step)

    async def read(self, name, offset=0, length=0):
        parts = [
            part.data
            async for part in self.stub.Fetch(pb.Range(name=name, offset=offset, length=length), metadata=self.metadata)
        ]
        return b"".join(parts)

    async def die(self):
        """As kill -9: no goodbye, nobody listens any more."""
        self.stop_training()
        self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.channel.close(None)

    def fall_silent(self):
        """As a machine that is suspended: its connections stay open, and its heartbeats end."""
        self.tasks[1].cancel()

    async def close(self):
        if self.server is not None:
            await self.die()


@pytest.fixture
async def cluster(tmp_path):
    """``coordinator(...)`` starts one; ``node(link, name)`` joins and attends. All end with the test."""
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question\n" * 200)
    started: list = []
    peers: dict[str, FakeNode] = {}

    class Cluster:
        folder = tmp_path

        def job(self, *changes: tuple[str, str]):
            text = JOB
            for old, new in changes:
                assert old in text
                text = text.replace(old, new)
            path = tmp_path / "job.toml"
            path.write_text(text)
            return path

        def coordinator(self, job=None, **keys) -> Coordinator:
            fields = {
                "state": tmp_path / "state",
                "listen": f"127.0.0.1:{free_port()}",
                "profile_command": PROFILE_COMMAND,
                "timing": TIMING,
                "planner": pairs,
            }
            made = Coordinator(Options(job=job or self.job(), **{**fields, **keys}))
            started.append(made)
            return made

        async def node(self, link, name="", kind=FakeNode, **keys) -> FakeNode:
            made = kind(link, name, **keys)
            started.append(made)
            reply = await made.join()
            assert not reply.refused, reply.refused
            made.peers = peers
            peers[made.name] = made
            return await made.attend()

        def fake(self, link, name="", **keys) -> FakeNode:
            made = FakeNode(link, name, **keys)
            started.append(made)
            return made

    yield Cluster()
    for one in reversed(started):
        if isinstance(one, FakeNode):
            await one.close()
        elif not one.task.done():
            one.stop.set()
            with contextlib.suppress(Exception):
                await asyncio.wait_for(one.task, 10)
    await asyncio.sleep(0)


@pytest.fixture
def eventually() -> Callable:
    async def wait(condition, timeout=120.0):
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, "it never came true"
            await asyncio.sleep(0.02)

    return wait


@pytest.fixture(scope="session")
def postgres():
    """A real PostgreSQL server for all tests of this run."""
    with running_server() as server:
        yield server


@pytest.fixture
def fake_node():
    """The class of the fake nodes."""
    return FakeNode


@pytest.fixture
def process(nursery, tmp_path):
    """``process(job, ...)`` starts a coordinator as a process of its own; all end with the test."""
    started: list[CoordinatorProcess] = []

    def start(job, **keys) -> CoordinatorProcess:
        keys = {"state": tmp_path / "state", "profile_command": PROFILE_COMMAND, "timing": TIMING, **keys}
        started.append(CoordinatorProcess(nursery, job, **keys))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture(scope="session")
def s3():
    """A real S3 server for all tests of this run."""
    with s3_server.running_server() as server:
        yield server
