"""A small coordinator for tests of the node's side: it records, obeys the test, and misbehaves on order."""

import asyncio
import contextlib
import hashlib
import threading
import time
from types import SimpleNamespace

import grpc
import grpc.aio
from ports import free_port

from farflung.coordinator.serve.calls.relay import Relay
from farflung.node.io.thread import IoThread
from farflung.proto.connections import rpc
from farflung.proto.control_pb2 import Artifact, JoinReply, Order, Piece, ShardHeld, StoreReply


class StubCoordinator(rpc.CoordinatorServicer):
    """Runs on the shared I/O thread. ``authority`` (certificate, key) makes it secure."""

    def __init__(self, authority=None, term=1, port=None, piece_size=1 << 16):
        self.authority, self.term, self.piece_size = authority, term, piece_size
        self.greets = True  # an order without a kind right after the hello
        self.reports, self.sessions, self.ranges, self.joins = [], [], [], []
        self.artifacts, self.stored = {}, {}
        self.damage = {}  # (name, piece) -> times that it is sent damaged
        self.cut = {}  # name -> times that a fetch ends after one message
        self.refuse_attend = self.refuse_store = ""
        self.describing = 0  # times that a description is not there yet, and is a little further
        self.partly = {}  # (step, file) -> what came of a stream that broke
        self.began_at = []  # the first offset of each stream
        self.hold = None  # an event that a stream waits for before it is read on
        self.break_after = 0  # bytes of a stream after which it breaks
        self.join_reply = JoinReply()
        self._streams = []
        self.knows = lambda *session: session in self.sessions
        self.relay = Relay("run-1", lambda *session: self.knows(*session))
        self.relayed_bytes = 0  # that the relay wrote to either end
        self._started, self._stop = threading.Event(), None
        self._port, self.port = port or free_port(), None
        self._work = IoThread.run(self._serve())
        assert self._started.wait(60)

    async def _relayed(self, context):
        write = context.write

        async def counted(message):
            self.relayed_bytes += len(message)
            await write(message)

        names = ("read", "peer", "invocation_metadata")
        same = {name: getattr(context, name) for name in names}
        await self.relay.serve(SimpleNamespace(**same, write=counted))

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def close(self):
        if self._work is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._work.wait(60)
            self._work = None

    def order(self, **kind):
        """Sends Order(term, KIND=message) to everybody attached."""
        order = Order(term=kind.pop("term", self.term), **kind)
        for queue in list(self._streams):
            self._loop.call_soon_threadsafe(queue.put_nowait, order)

    def kinds(self):
        return [report.WhichOneof("kind") for report in list(self.reports)]

    def wait(self, kind, count=1, timeout=60.0):
        """The reports of a kind, once there are `count`."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            found = [getattr(report, kind) for report in list(self.reports) if report.WhichOneof("kind") == kind]
            if len(found) >= count:
                return found
            time.sleep(0.02)
        raise AssertionError(f"{kind} did not come {count} times: {self.kinds()}")

    async def _serve(self):
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = grpc.aio.server(options=rpc.server_options())
        rpc.add_CoordinatorServicer_to_server(self, server)
        server.add_generic_rpc_handlers((rpc.peer_handler(self._relayed),))
        credentials = rpc.coordinator_server_credentials(*self.authority) if self.authority else None
        self.port = rpc.bind(server, f"127.0.0.1:{self._port}", credentials)
        await server.start()
        self._started.set()
        await self._stop.wait()
        await server.stop(0)

    async def Join(self, request, context):
        self.joins.append(request)
        return self.join_reply

    async def Attend(self, requests, context):
        self.sessions.append(rpc.parse_session(context.invocation_metadata()))
        if self.refuse_attend:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, self.refuse_attend)
        queue = asyncio.Queue()
        self._streams.append(queue)
        if self.greets:
            queue.put_nowait(Order(term=self.term))

        async def record():
            async for report in requests:
                self.reports.append(report)
            queue.put_nowait(None)

        recorder = asyncio.create_task(record())
        try:
            while (order := await queue.get()) is not None:
                yield order
        finally:
            self._streams.remove(queue)
            recorder.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await recorder

    async def Describe(self, request, context):
        data = self.artifacts.get(request.name)
        if data is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no artifact {request.name}")
        if self.describing:
            self.describing -= 1
            return Artifact(name=request.name, size=len(data), described=1000 - self.describing)
        size = self.piece_size
        digests = [hashlib.sha256(data[at : at + size]).digest() for at in range(0, len(data), size)]
        return Artifact(name=request.name, size=len(data), piece_size=size, piece_digests=digests)

    async def Fetch(self, request, context):
        self.ranges.append((request.offset, request.length))
        data, at, end = self.artifacts[request.name], request.offset, request.offset + request.length
        while at < end:
            step = min(40_000, end - at)
            part = bytearray(data[at : at + step])
            for piece in {at // self.piece_size, (at + step - 1) // self.piece_size}:
                if self.damage.get((request.name, piece), 0) > 0:
                    self.damage[request.name, piece] -= 1
                    part[-1] ^= 1
            yield Piece(offset=at, data=bytes(part))
            at += step
            if self.cut.get(request.name, 0) > 0:
                self.cut[request.name] -= 1
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the wire was cut")

    async def Held(self, request, context):
        return ShardHeld(offset=len(self.partly.get((request.step, request.file), b"")))

    async def Store(self, requests, context):
        data, last, came = bytearray(), None, 0
        async for shard in requests:
            if last is None:
                data = self.partly[shard.step, shard.file] if shard.offset else data
                self.began_at.append(shard.offset)
                self.partly[shard.step, shard.file] = data
            assert shard.offset == len(data)
            data += shard.data
            came += len(shard.data)
            last = shard
            if self.hold is not None:
                await asyncio.to_thread(self.hold.wait)
            if self.break_after and came >= self.break_after and not last.last:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the wire was cut")
        if self.refuse_store:
            return StoreReply(refused=self.refuse_store)
        assert last.last and last.digest == hashlib.sha256(data).digest()
        self.stored[last.step, last.file] = (bytes(data), last.files, last.meta)
        return StoreReply(complete=len(self.stored) == last.files)
