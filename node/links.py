"""The sending end: one link to each other member of the view, each with a connection and a queue of its own.

A link keeps its connection open for as long as it lives (a cold connection costs several round trips), and connects
again with a growing pause when it breaks. What the peer had not acknowledged goes again on the new stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc.aio

from ..proto import PROTOCOL, rpc
from ..proto import frame as frames
from ..proto.control_pb2 import Member
from ..proto.data_pb2 import Greeting, Header
from ..proto.frame import Frame, FrameError, Kind
from .send_queue import Outgoing, SendQueue
from .shorten import Shortener
from .traffic import OTHER, Traffic

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 3.0
PAUSE_GROWTH = 1.5
"""A lost peer is tried again after 0.2, 0.5, 1.0, 1.6, 2.6 ... seconds."""
GREETING_TIMEOUT = 15.0
"""Seconds for a connection and the answer to the greeting."""


@dataclass(frozen=True)
class Self:
    """This node, as it greets its peers."""

    run: str
    name: str
    session: str
    credentials: rpc.Credentials


class LinkBroken(Exception):
    """The stream of a link ended; the text says why."""


class PeerLink:
    """Everything that goes from this node to one peer. Lives on the event loop that made it."""

    def __init__(self, me: Self, peer: Member, traffic: Traffic, on_lost: Callable[[PeerLink, str], None]) -> None:
        self.peer = peer
        self.queue = SendQueue()
        self.connected = asyncio.Event()
        self.closed = False
        self._me, self._traffic, self._on_lost = me, traffic, on_lost
        self._wake = asyncio.Event()
        self._acknowledged = asyncio.Event()
        self._lost = False
        self.task = asyncio.create_task(self._keep(), name=f"link to {peer.name}")

    def send(self, message: Outgoing) -> None:
        self.queue.put(message)
        self._wake.set()

    def tell_again(self) -> None:
        """A new view has begun: if the peer is lost, the next failure is reported once more."""
        self._lost = False

    def drop(self, unwanted: Callable[[Header], bool]) -> int:
        """Forgets messages, sent or not; returns how many."""
        return self.queue.drop(unwanted)

    async def drained(self, deadline: float) -> None:
        """Waits until the peer has acknowledged everything, is lost, or it is `deadline` (monotonic)."""
        while self.queue.unfinished and self.connected.is_set() and (left := deadline - time.monotonic()) > 0:
            self._acknowledged.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._acknowledged.wait(), min(left, 0.1))

    async def close(self) -> None:
        """Ends the connection; everything queued is released."""
        self.closed = True
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        self.queue.drop(lambda _: True)

    # ---- the connection --------------------------------------------------------------------

    async def _keep(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                await self._talk()
                why = "the stream ended"
            except (LinkBroken, FrameError) as error:
                why = str(error)
            except rpc.BROKEN as error:
                why = rpc.why_broken(error)
            if self.connected.is_set():
                self.connected.clear()
                pause = FIRST_PAUSE
            self.queue.rewind()
            if not self._lost:
                self._lost = True
                self._on_lost(self, why)
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(PAUSE_GROWTH * pause, LONGEST_PAUSE)

    async def _talk(self) -> None:
        """One connection from greeting to break. Raises what broke it."""
        channel = rpc.peer_channel(self.peer.address, self.peer.name, self._me.credentials)
        call = None
        try:
            call = rpc.peer_method(channel)
            await asyncio.wait_for(self._greet(call), GREETING_TIMEOUT)
            self._lost = False
            self.connected.set()
            await self._both_ways(call)
        except asyncio.TimeoutError:
            raise LinkBroken(f"no answer from {self.peer.address} in {GREETING_TIMEOUT:.0f} s") from None
        finally:
            if call is not None:
                call.cancel()
            await channel.close(None)

    async def _greet(self, call: rpc.PeerCall) -> None:
        greeting = Greeting(
            protocol=PROTOCOL,
            run=self._me.run,
            name=self._me.name,
            session=self._me.session,
            to=self.peer.name,
            to_session=self.peer.session,
        )
        hello = b"".join(frames.encode(Frame(Kind.HELLO, head=greeting.SerializeToString())))
        self._traffic.wrote([(OTHER, len(hello))])
        try:
            await call.write(hello)
        except rpc.BROKEN:
            await _raise_status(call)
        answer = await self._read(call)
        if not answer or answer[0].kind is not Kind.WELCOME:
            raise LinkBroken("the answer to the greeting is not one")

    async def _both_ways(self, call: rpc.PeerCall) -> None:
        tasks = [asyncio.create_task(self._write_all(call)), asyncio.create_task(self._read_all(call))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # The reader's end carries the status; a failed write only says "internal error".
            failed = tasks[1] if tasks[1] in done else tasks[0]
            await failed
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write_all(self, call: rpc.PeerCall) -> None:
        """One write at a time, so that an urgent message waits for at most one chunk here."""
        shortener = Shortener()
        while True:
            while parts := self.queue.next_write(shortener):
                message = b"".join(buffer for _, buffers in parts for buffer in buffers)
                self._traffic.wrote((category, frames.size(buffers)) for category, buffers in parts)
                try:
                    await call.write(message)
                except rpc.BROKEN:
                    await _raise_status(call)
            self._wake.clear()
            await self._wake.wait()

    async def _read_all(self, call: rpc.PeerCall) -> None:
        while True:
            for frame in await self._read(call):
                if frame.kind is not Kind.ACK:
                    raise LinkBroken(f"unexpected frame {frame.kind.name}")
                self.queue.acknowledge(frame.priority, frame.transfer)
            self._acknowledged.set()

    async def _read(self, call: rpc.PeerCall) -> list[Frame]:
        """The frames of one message. LinkBroken at the end of the stream, or with the peer's refusal."""
        message = await call.read()
        if message is rpc.END:
            await _raise_status(call)
        answer = frames.decode(message)
        for frame in answer:
            if frame.kind is Kind.REFUSE:
                raise LinkBroken(f"{self.peer.name} refused the stream: {bytes(frame.head).decode('utf-8', 'replace')}")
        return answer


async def _raise_status(call: rpc.PeerCall) -> None:
    """LinkBroken with the reason that the call's status gives."""
    code = await call.code()
    if code is grpc.StatusCode.OK:
        raise LinkBroken("the peer ended the stream")
    details = (await call.details() or "").strip().rstrip("]").split(": ")[-1]
    raise LinkBroken(details[:200] or code.name)
