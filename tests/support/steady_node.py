"""A fake node that does with its control stream what a real one does: it comes back for ever, and says again."""

import asyncio
import contextlib
import time
from collections import deque

import grpc
import grpc.aio

from farflung.node.io.to_coordinator.control import COUNTED, SAY_AGAIN, SAY_AGAIN_SECONDS, still_counted
from farflung.proto import control_pb2 as pb
from farflung.proto.connections import rpc


def steady(fake_node):
    """The class, over the fake nodes of the coordinator's tests."""

    class SteadyNode(fake_node):
        hold = 10**9
        """Nobody trains beyond this step."""

        def _is_ready(self, name):
            return self.step < self.hold and super()._is_ready(name)

        def __init__(self, *words, **keys):
            super().__init__(*words, **keys)
            self.reports, self.recent, self.counted = deque(), deque(), deque()
            self.wake = asyncio.Event()
            self.waiting, self.sending = {}, set()
            self.keeper = None
            self.terms = []

        async def attend(self):
            self.keeper = asyncio.create_task(self._keep())
            return self

        async def say(self, **report):
            self.reports.append(pb.Report(**report))
            self.wake.set()

        async def _keep(self):
            while not self.stopped:
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await self._attend_once()
                oldest = time.monotonic() - SAY_AGAIN_SECONDS
                again = [*self.counted, *(report for when, report in self.recent if when >= oldest)]
                self.reports.extendleft(reversed(again))
                self.counted.clear()
                self.recent.clear()
                await asyncio.sleep(0.1)

        async def _attend_once(self):
            channel = rpc.coordinator_channel(self.link.address, self.authority)
            try:
                self.call = rpc.coordinator_stub(channel).Attend(metadata=self.metadata)
                hello = pb.Hello(session=self.session, view=self.view.number if self.view else 0)
                await self.call.write(pb.Report(hello=hello))
                writer = asyncio.create_task(self._write())
                try:
                    async for order in self.call:
                        if self.terms and order.term < self.terms[-1]:
                            continue
                        self.terms.append(order.term)
                        if order.HasField("ledger"):
                            self.counted = still_counted(self.counted, order.ledger)
                        self.orders.append(order)
                        await self._obey(order)
                        if self.stopped:
                            await self.call.write(pb.Report(goodbye=pb.Goodbye(why="told to")))
                            return
                finally:
                    writer.cancel()
                    await asyncio.gather(writer, return_exceptions=True)
            finally:
                await channel.close(None)

        async def _write(self):
            beat = time.monotonic()
            while True:
                while self.reports:
                    report = self.reports[0]
                    await self.call.write(report)
                    self.reports.popleft()
                    if report.WhichOneof("kind") in SAY_AGAIN:
                        self.recent.append((time.monotonic(), report))
                    elif report.WhichOneof("kind") in COUNTED:
                        self.counted.append(report)
                if time.monotonic() >= beat:
                    await self.call.write(pb.Report(heartbeat=pb.Heartbeat(doing="pretending")))
                    beat = time.monotonic() + 0.5
                self.wake.clear()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.wake.wait(), 0.1)

        async def store(self, step, name, position=None, data=None, **changes):
            """In the background, one after the other; of those that wait only the newest is sent."""
            self.waiting[name] = step, position
            if name not in self.sending:
                self.sending.add(name)
                self.tasks.append(asyncio.create_task(self._send(name)))

        async def _send(self, name):
            while name in self.waiting:
                step, position = self.waiting.pop(name)
                while not await self._sent(step, name, position):  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            self.sending.discard(name)

        async def _sent(self, step, name, position):
            """Whether the coordinator has answered; it may have gone away meanwhile."""
            channel = rpc.coordinator_channel(self.link.address, self.authority)
            try:
                self.stub = rpc.coordinator_stub(channel)
                await super().store(step, name, position)
                return True
            except grpc.aio.AioRpcError:
                return False
            finally:
                await channel.close(None)

        async def leave(self):
            """Say goodbye and go."""
            await self.say(goodbye=pb.Goodbye(why="its owner wants it back"))
            self.stop_training()
            while self.reports:  # noqa: ASYNC110 - another task empties it
                await asyncio.sleep(0.01)
            await self.die()

        async def die(self):
            if self.keeper is not None:
                self.keeper.cancel()
                await asyncio.gather(self.keeper, return_exceptions=True)
            await super().die()

    return SteadyNode
