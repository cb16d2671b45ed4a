"""The control stream to the coordinator: reports up, orders down, a heartbeat every second, for the node's whole life.

When the coordinator is away, the node tries to connect again without limit; reports wait meanwhile. The coordinator is
back when the first order of the new stream arrives (an order without a kind counts too), or after a second without a
refusal.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable

import grpc
import grpc.aio

from ....proto.connections import rpc
from ....proto.control_pb2 import Goodbye, Heartbeat, Hello, Ledger, Order, Report, Stop
from ....proto.words.border import MOST_WORDS, Hostile, printable
from ....proto.words.fields import checked
from ...peers.greeting import FIRST_PAUSE, LONGEST_PAUSE, PAUSE_GROWTH, LinkBroken
from ...peers.traffic import ACTIVATIONS, OTHER, UPDATES, Traffic
from .packed_views import PackedViews

SAY_AGAIN = frozenset({"flushed", "prepared", "caught_up", "finished", "evidence", "links", "leaving", "back"})
"""Reports that the coordinator waits for or acts on; the same one twice, in order, does no harm. Warnings are not among
them: their points would count twice."""
COUNTED = frozenset({"step", "eval"})
"""Reports that the coordinator adds up: sent again until it has stored them. It counts each once."""
OPENING_TRIPS = 4
"""Round trips in which a stream opens: TCP, two of TLS, the first order."""
SAY_AGAIN_SECONDS = 15.0
"""A report written so shortly before the stream broke may not have arrived."""
BUFFERED_REPORTS = 10_000
SETTLED = 1.0
"""Seconds after which an open stream counts as accepted even if no order came."""

_FENCED = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})


_OPENING = 3
"""Factor on a goodbye's seconds while the stream is still being opened."""


class ControlLink:
    """The stream and its queue of reports.

    It calls ``on_order(order)``, and alternately ``on_lost(why)`` and ``on_back(term)``. ``view()`` returns the view
    that the hello names, ``last_action()`` and ``moved()`` the values that a heartbeat carries.
    """

    def __init__(
        self,
        address: str,
        credentials: rpc.Credentials,
        metadata: tuple[tuple[str, str], ...],
        session: str,
        heartbeat: float,
        traffic: Traffic,
        *,
        view: Callable[[], int],
        last_action: Callable[[], tuple[float, str]],
        moved: Callable[[], int],
        on_order: Callable[[Order], None],
        on_lost: Callable[[str], None],
        on_back: Callable[[int], None],
    ) -> None:
        self.term = 0
        self.address, self._credentials, self._metadata, self._session = address, credentials, metadata, session
        self._heartbeat, self._traffic = heartbeat, traffic
        self._view, self._last_action, self._moved = view, last_action, moved
        self._on_order, self._on_lost, self._on_back = on_order, on_lost, on_back
        self._reports: deque[Report] = deque()
        self._recent: deque[tuple[float, Report]] = deque()
        self._counted: deque[Report] = deque(maxlen=BUFFERED_REPORTS)
        self._packed = PackedViews()
        self._wake = asyncio.Event()
        self._attached = False
        self._ever_lost = False
        self._fenced = False
        self._closing = False
        self._heard = False
        self._began = 0.0
        self.opening_s = 0.0
        """Seconds that the stream last took to open: ``OPENING_TRIPS`` round trips, or more on a busy machine."""
        self._shortest_opening_s = math.inf
        self.task = asyncio.create_task(self._keep(), name="control link")

    @property
    def round_trip_s(self) -> float:
        """Estimated round-trip time to the coordinator in seconds; 0: not known."""
        return 0.0 if math.isinf(self._shortest_opening_s) else self._shortest_opening_s / OPENING_TRIPS

    def report(self, report: Report) -> None:
        """Queues a report; a finished step gets the bytes sent since the last one."""
        if report.WhichOneof("kind") == "step":
            sent = self._traffic.since_last()
            report.step.bytes_updates += sent[UPDATES]
            report.step.bytes_activations += sent[ACTIVATIONS]
            report.step.bytes_other += sent[OTHER]
            report.step.sent.extend(self._traffic.to_since_last())
        if len(self._reports) >= BUFFERED_REPORTS:
            self._reports.popleft()
            self._traffic.dropped["report while the coordinator was away"] += 1
        self._reports.append(report)
        self._wake.set()

    async def goodbye(self, why: str, timeout: float) -> bool:
        """Ends the link. With a `why`, sends a goodbye first if the coordinator is there. Returns whether the
        coordinator has taken the goodbye. Without a `why` (the trainer died) the coordinator only sees the stream end.

        A node that leaves before its first stream is open waits for it to say goodbye: it has joined, and without a
        goodbye the coordinator would wait for it."""
        self._closing = True
        if why and (self._attached or not self._ever_lost):
            self.report(Report(goodbye=Goodbye(why=why)))
            await asyncio.wait([self.task], timeout=timeout if self._attached else _OPENING * timeout)
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        return self._heard

    # ---- the stream ------------------------------------------------------------------------

    async def _keep(self) -> None:
        pause = FIRST_PAUSE
        while not self._fenced:
            try:
                await self._attend()
                why = "the coordinator ended the stream"
                self._heard = self._closing  # the coordinator ends the stream after a goodbye
            except LinkBroken as error:
                why = str(error)
            except rpc.BROKEN as error:
                why = rpc.why_broken(error)
            if self._closing:
                return
            if self._attached:
                pause = FIRST_PAUSE
            self._queue_again()
            if (self._attached or not self._ever_lost) and not self._fenced:
                self._ever_lost = True
                self._on_lost(why)
            self._attached = False
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(PAUSE_GROWTH * pause, LONGEST_PAUSE)

    async def _attend(self) -> None:
        self._began = time.monotonic()
        channel = rpc.coordinator_channel(self.address, self._credentials.pinned, self.round_trip_s)
        call = None
        try:
            call = rpc.coordinator_stub(channel).Attend(metadata=self._metadata)
            hello = Hello(session=self._session, view=self._view(), holds=self._packed.newest)
            with contextlib.suppress(*rpc.BROKEN):  # the reader gets the error's status
                await call.write(Report(hello=hello))
            tasks = [
                asyncio.create_task(self._read_orders(call)),
                asyncio.create_task(self._write_reports(call)),
                asyncio.create_task(self._settle(call)),
            ]
            try:
                await asyncio.wait(tasks[:1] if self._closing else tasks[:2], return_when=asyncio.FIRST_COMPLETED)
                if tasks[1].done() and self._closing:
                    await asyncio.wait(tasks[:1])
                await (tasks[0] if tasks[0].done() else tasks[1])
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            if call is not None:
                call.cancel()
            await channel.close(None)

    async def _read_orders(self, call: rpc.PeerCall) -> None:
        while True:
            try:
                order = await call.read()
            except rpc.BROKEN:  # its status says more
                break
            if order is rpc.END:
                break
            if order.term < self.term:
                self._traffic.dropped["order of an older term"] += 1
                continue
            self.term = order.term
            if not self._attached:
                self.opening_s = time.monotonic() - self._began
                self._shortest_opening_s = min(self._shortest_opening_s, self.opening_s)
            self._accepted()
            if order.HasField("ledger"):
                self._counted = still_counted(self._counted, order.ledger)
            if order.WhichOneof("kind") == "packed":
                try:
                    order = Order(term=order.term, view=self._packed.open(order.packed))
                except ValueError as error:  # the next stream begins with a view that is not packed
                    raise LinkBroken(str(error)) from None
            try:
                checked(order)
            except Hostile as problem:
                self._end(f"the coordinator sent an order that this node refuses: {problem.message}")
                return
            if order.WhichOneof("kind") is not None:
                self._on_order(order)
        code, details = await call.code(), printable(str(await call.details() or ""), MOST_WORDS)
        if code in _FENCED:
            self._end(details or code.name, again=code is grpc.StatusCode.UNAUTHENTICATED)
        if code is not grpc.StatusCode.OK:
            raise LinkBroken(details.strip().rstrip("]").split(": ")[-1][:200] or code.name)

    def _end(self, why: str, again: bool = False) -> None:
        """End this session: it does not connect again. ``again``: the node may join again, in a new session."""
        self._fenced = True
        self._on_order(Order(term=self.term, stop=Stop(why=why, refused=not again, again=again)))

    async def _write_reports(self, call: rpc.PeerCall) -> None:
        next_beat = time.monotonic()
        while True:
            while self._reports:
                report = self._reports[0]
                await self._write(call, report)
                if self._reports and self._reports[0] is report:
                    self._reports.popleft()
                if report.WhichOneof("kind") in SAY_AGAIN:
                    self._recent.append((time.monotonic(), report))
                elif report.WhichOneof("kind") in COUNTED:
                    self._counted.append(report)
            if self._closing:
                await call.done_writing()
                return
            if time.monotonic() >= next_beat:
                age, doing = self._last_action()
                await self._write(call, Report(heartbeat=Heartbeat(trainer_age=age, doing=doing, moved=self._moved())))
                next_beat = max(next_beat + self._heartbeat, time.monotonic())
            self._wake.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), max(0.0, next_beat - time.monotonic()))

    async def _write(self, call: rpc.PeerCall, report: Report) -> None:
        self._traffic.wrote([(OTHER, report.ByteSize())])
        await call.write(report)

    async def _settle(self, call: rpc.PeerCall) -> None:
        await asyncio.sleep(SETTLED)
        if call.done():
            return
        # A call to a coordinator that is away fails at once, so a call that is still open was accepted.
        self._accepted()

    def _accepted(self) -> None:
        if not self._attached:
            self._attached = True
            if self._ever_lost:
                self._on_back(self.term)

    def _queue_again(self) -> None:
        """Puts the reports that may have been lost with the stream back at the front of the queue."""
        oldest = time.monotonic() - SAY_AGAIN_SECONDS
        again = [*self._counted, *(report for when, report in self._recent if when >= oldest)]
        self._recent.clear()
        self._counted.clear()
        self._reports.extendleft(reversed(again))


def still_counted(reports: Iterable[Report], stored: Ledger) -> deque[Report]:
    """The reports of steps and evaluations that are not stored yet."""

    def is_open(report: Report) -> bool:
        is_step = report.WhichOneof("kind") == "step"
        done, through = (report.step, stored.step) if is_step else (report.eval, stored.eval)
        return done.view > stored.view or (done.view == stored.view and done.step > through)

    return deque(filter(is_open, reports), maxlen=BUFFERED_REPORTS)
