"""What the node's I/O process does: one object that owns every connection of the node; main.py runs it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import grpc.aio

from ...proto import control_pb2 as control
from ...proto.connections import rpc
from ...proto.data_pb2 import Header
from ...proto.errors import FarflungError, Parted
from ..ipc.arena import Arena, LastAction
from ..ipc.config import WireConfig
from ..ipc.pipe import PARTED_STATUS, From, LoopEnd, To
from ..peers.greeting import Self
from ..peers.link_watch import TICK_SECONDS
from ..peers.receiving.admission import Membership
from ..peers.receiving.inbox import ArenaFull, Inbox
from ..peers.receiving.server import Inbound
from ..peers.traffic import Traffic
from .peer_links import PeerLinks, Tells
from .to_coordinator.artifacts import Artifacts
from .to_coordinator.certificate import CertificateKeeper
from .to_coordinator.control import ControlLink
from .to_coordinator.uploads import Uploader, upload_of

if TYPE_CHECKING:
    from .metrics import NodeMetrics

log = logging.getLogger("farflung.io")

GOODBYE_TIMEOUT = 2.0


class IoProcess:
    """Carries messages between the pipe, the peers and the coordinator."""

    def __init__(self, config: WireConfig, end: LoopEnd, send_arena: Arena, receive_arena: Arena) -> None:
        self.config = config
        self._end = end
        self._send_arena = send_arena
        self._last_action = LastAction(send_arena.view(0, LastAction.SIZE))
        self._traffic = Traffic(self._last_action.tell_arriving, config.max_upload)
        self._membership = Membership(config.name)
        self._inbox = Inbox(receive_arena, config.receive_limit, self._received)
        metadata = rpc.session_metadata(config.name, config.session, config.secret)
        self._me = Self(
            config.run,
            config.name,
            config.session,
            config.credentials,
            config.dials_out,
            config.coordinator,
            metadata,
            config.protocol,
        )
        self._inbound = Inbound(self._me, self._membership, self._inbox, self._traffic)
        tells = Tells(self._lost, self._report, self._spawn, self._finished)
        self._links = PeerLinks(self._me, self._membership, self._inbound, self._traffic, tells)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server: grpc.aio.Server | None = None
        self._control: ControlLink | None = None
        self._metadata = metadata
        self._artifacts = Artifacts(config.coordinator, config.credentials, metadata, self._traffic, config.patience)
        self._uploads = Uploader(
            self._artifacts,
            send_arena,
            urgent=lambda: self._links.urgent_waiting,
            freed=lambda start: self._end.write(int(From.FREED), start, 0),
            warn=self._warn,
            spawn=self._spawn,
        )
        self._certificate = CertificateKeeper(self._me, config.key, config.listen, self._report)
        self._metrics: NodeMetrics | None = None
        self._end_metrics: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Opens the port and tells the trainer its number, or why not."""
        config = self.config
        self._server = grpc.aio.server(options=rpc.server_options())
        self._server.add_generic_rpc_handlers((rpc.peer_handler(self._inbound.serve),))
        credentials = config.credentials
        try:
            port = rpc.bind(
                self._server,
                config.listen,
                rpc.peer_server_credentials(lambda: self._me.credentials) if credentials.secure else None,
            )
        except OSError as error:
            self._end.write(int(From.FAILED), str(error))
            return
        await self._server.start()
        self._certificate.port = port
        self._inbound.door.ports.add(port)
        self._spawn(self._inbound.door.watch())
        if config.metrics:
            from .metrics import NodeMetrics  # loaded only with --metrics

            self._metrics = NodeMetrics(
                self._traffic, lambda: self._membership.view, lambda: self._last_action.read()[0]
            )
            try:
                self._end_metrics = self._metrics.serve(config.metrics)
            except OSError as error:
                why = error.strerror or str(error)
                self._end.write(int(From.FAILED), f"cannot show metrics at {config.metrics}: {why.lower()}")
                return
        if config.coordinator:
            self._control = ControlLink(
                config.coordinator,
                credentials,
                self._metadata,
                config.session,
                config.heartbeat,
                self._traffic,
                view=lambda: self._membership.view,
                last_action=self._last_action.read,
                moved=self._moved,
                on_order=self._ordered,
                on_lost=lambda why: self._end.write(int(From.COORDINATOR_LOST), why),
                on_back=lambda term: self._end.write(int(From.COORDINATOR_BACK), term),
            )
            self._control.task.add_done_callback(self._finished)
            self._spawn(self._watch_links())
            if config.certificate_life:
                self._spawn(self._certificate.keep(config.certificate_life))
        self._end.write(int(From.LISTENING), port)

    async def stop(self, why: str = "", drain: float = 0.0) -> None:
        """Waits up to `drain` seconds for acknowledgements, says goodbye if there is a `why`, closes everything."""
        deadline = time.monotonic() + drain
        await self._links.drained(deadline)
        if self._control is not None:
            heard = await self._control.goodbye(why, GOODBYE_TIMEOUT)
            self._end.write(int(From.PARTED), heard)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._links.close()
        await self._artifacts.close()
        await asyncio.to_thread(self._end_metrics)
        await self._inbound.close()
        if self._server is not None:
            await self._server.stop(0)

    # ---- from the trainer ------------------------------------------------------------------

    def take(self, message: tuple[Any, ...]) -> None:
        """Handle a message of the trainer (`To` of ipc/pipe.py), except CONFIG and CLOSE."""
        kind, *values = message
        if kind == To.SEND:
            self._send(*values)
        elif kind == To.TAKEN:
            self._inbox.taken(*values)
        elif kind == To.REPORT:
            report = control.Report.FromString(values[0])
            self._report(report)
            if self._metrics is not None and self._control is not None:
                self._metrics.report(report)
        elif kind == To.ENTER:
            self._enter(values[0], [control.Member.FromString(member) for member in values[1]], values[2])
        elif kind == To.LEAVE:
            self._leave()
        elif kind == To.CALL:
            self._spawn(self._call(*values))
        elif kind == To.STORE:
            self._uploads.put(upload_of(*values))
        else:
            raise RuntimeError(f"unknown message {kind} from the trainer")

    def _send(self, to: str, priority: int, header: bytes, payload: bytes | tuple[int, int]) -> None:
        if isinstance(payload, tuple):
            start, length = payload
            view = self._send_arena.view(start, length)
            freed = (int(From.FREED), start, 0)
        else:
            view = memoryview(payload)
            freed = (int(From.FREED), -1, len(payload))
        if not self._links.send(to, priority, Header.FromString(header), view, lambda: self._end.write(*freed)):
            self._end.write(*freed)

    def _enter(self, view: int, members: list[control.Member], needed: list[str] | None) -> None:
        self._membership.enter(view, members)
        self._links.enter(view, needed)
        self._inbound.view_changed()

    def _leave(self) -> None:
        self._membership.leave()
        self._links.leave()
        self._inbound.view_changed()

    async def _call(self, number: int, method: str, arguments: list[Any]) -> None:
        """Answer a blocking call of the trainer: describe, fetch, measure, statistics."""
        payload: bytes | bytearray = b""
        problem, hint, status = "", "", 0
        try:
            if method == "describe":
                payload = (await self._artifacts.describe(arguments[0])).SerializeToString()
            elif method == "fetch":
                payload = await self._artifacts.fetch(*arguments)
            elif method == "measure":
                peers = [control.Member.FromString(peer) for peer in arguments[0]]
                payload = (await self._measure(peers)).SerializeToString()
            elif method == "uplink":
                payload = str(self._links.uplink(self.config.max_upload)).encode()
            else:
                payload = json.dumps({**self._traffic.sent, **self._traffic.dropped}).encode()
            lent = self._inbox.lend(payload)
        except FarflungError as error:
            lent, problem, hint, status = b"", error.message, error.hint, error.status
            if isinstance(error, Parted):
                status = PARTED_STATUS
        except ArenaFull as error:
            lent, problem, hint, status = b"", str(error), "free some memory", 4
        self._end.write(int(From.REPLY), number, problem, hint, status, lent)

    # ---- to the trainer and the coordinator ------------------------------------------------

    def _received(self, sender: str, header: bytes, payload: bytes | tuple[int, int]) -> None:
        self._end.write(int(From.RECEIVED), sender, header, payload)

    def _ordered(self, order: control.Order) -> None:
        """Pass an order on to the trainer, except Measure, which this process carries out without interrupting it."""
        if self._control is not None:
            self._me.round_trips[""] = self._control.round_trip_s
        if order.WhichOneof("kind") == "measure":
            self._spawn(self._measure_and_report(list(order.measure.peers)))
        elif order.WhichOneof("kind") == "clock":
            answer = control.ClockAnswer(number=order.clock.number, monotonic=time.monotonic())
            self._report(control.Report(clock=answer))
        elif order.WhichOneof("kind") == "certificate":
            self._certificate.take(order.certificate)
        elif order.WhichOneof("kind") == "revoked":
            self._membership.revoked = frozenset(order.revoked.nodes)
            self._inbound.view_changed()
        else:
            self._end.write(int(From.ORDER), order.SerializeToString())

    def _warn(self, message: str) -> None:
        log.warning("%s", message)
        self._report(control.Report(warning=control.Warning(message=message, node=self.config.name)))

    def _lost(self, peer: str, why: str) -> None:
        self._end.write(int(From.PEER_LOST), peer, why)

    def _report(self, report: control.Report) -> None:
        if self._control is not None:
            self._control.report(report)

    # ---- measuring links -------------------------------------------------------------------

    async def _measure(self, peers: list[control.Member]) -> control.Links:
        # A link to a peer may take longer to open than the control stream did: allow twice that time in addition.
        opening = self._control.opening_s if self._control is not None else 0.0
        return await self._links.measure(peers, self.config.probe_patience + 2 * opening)

    async def _measure_and_report(self, peers: list[control.Member]) -> None:
        self._report(control.Report(links=await self._measure(peers)))

    def _moved(self) -> int:
        """The ``moved`` number of a heartbeat: it changes while the trainer works or bytes arrive."""
        return self._last_action.work + self._traffic.came

    async def _watch_links(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._links.watch()
            self._last_action.tell_arrived(self._traffic.came)

    # ---- small things ----------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the I/O process failed", exc_info=error)
            self._end.close()  # the trainer then ends too, rather than run without this task
