"""The node's I/O process: one event loop that owns every connection of the node.

`node/wire/spawn.py` starts it as `python -m farflung.node.io.process`, with a socket pair to the trainer and two
shared-memory arenas; or, in tests, as a task of a thread (thread.py): the same code. It never imports torch. It ends
when the trainer's end of the pipe does, however that came about.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc.aio

from ...proto import control_pb2 as control
from ...proto import rpc
from ...proto.data_pb2 import Header
from ...proto.errors import FarflungError, Parted
from ...proto.link import split_address
from ...proto.logs import set_up as set_up_logs
from ..device import identity
from ..ipc.arena import Arena, LastAction, keep_freed_memory
from ..ipc.config import WireConfig
from ..ipc.pipe import PARTED_STATUS, From, LoopEnd, To
from ..peers.greeting import Self
from ..peers.link_watch import TICK_SECONDS
from ..peers.receiving.admission import Membership
from ..peers.receiving.dial_out import Receiving
from ..peers.receiving.inbox import ArenaFull, Inbox
from ..peers.receiving.server import Inbound
from ..peers.sending.link import PeerLink
from ..peers.sending.send_queue import Outgoing
from ..peers.traffic import Traffic
from .artifacts import Artifacts
from .control import ControlLink
from .link_probe import measure
from .upload_queue import Upload, UploadQueue

if TYPE_CHECKING:
    from .metrics import NodeMetrics

log = logging.getLogger("farflung.io")

GOODBYE_TIMEOUT = 2.0
BURST_BYTES = 16 << 20


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
        self._links: dict[str, PeerLink] = {}
        self._needed: Set[str] = frozenset()
        """Peers with whom this node exchanges something in this view."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._transfer = 0
        self._server: grpc.aio.Server | None = None
        self._control: ControlLink | None = None
        self._metadata = metadata
        self._artifacts = Artifacts(config.coordinator, config.credentials, metadata, self._traffic, config.patience)
        self._uploads, self._storing = UploadQueue(), False
        self._metrics: NodeMetrics | None = None
        self._end_metrics: Callable[[], None] = lambda: None
        self._fastest = 0.0
        self._port = 0
        self._renewed: asyncio.Future[control.Certificate] | None = None

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
        self._port = port
        self._inbound.door.ports.add(port)
        self._spawn(self._inbound.door.watch())
        if config.metrics:
            from .metrics import NodeMetrics  # not loaded where nobody asks

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
                self._spawn(self._keep_certificate(config.certificate_life))
        self._end.write(int(From.LISTENING), port)

    async def stop(self, why: str = "", drain: float = 0.0) -> None:
        """Waits up to `drain` seconds for acknowledgements, says goodbye if there is a `why`, closes everything."""
        deadline = time.monotonic() + drain
        for link in self._links.values():
            await link.drained(deadline)
        if self._control is not None:
            heard = await self._control.goodbye(why, GOODBYE_TIMEOUT)
            self._end.write(int(From.PARTED), heard)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(link.close() for link in self._links.values()))
        self._links.clear()
        await self._artifacts.close()
        await asyncio.to_thread(self._end_metrics)
        await self._inbound.close()
        if self._server is not None:
            await self._server.stop(0)

    # ---- from the trainer ------------------------------------------------------------------

    def take(self, message: tuple[Any, ...]) -> None:
        """A message of the trainer (`To` of ipc/pipe.py), except CONFIG and CLOSE."""
        kind, *values = message
        if kind == To.SEND:
            self._send(*values)
        elif kind == To.TAKEN:
            self._inbox.taken(*values)
        elif kind == To.REPORT:
            if self._control is not None:
                report = control.Report.FromString(values[0])
                self._control.report(report)
                if self._metrics is not None:
                    self._metrics.report(report)
        elif kind == To.ENTER:
            self._enter(values[0], [control.Member.FromString(member) for member in values[1]], values[2])
        elif kind == To.LEAVE:
            self._leave()
        elif kind == To.CALL:
            self._spawn(self._call(*values))
        elif kind == To.STORE:
            self._store(*values)
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
        parsed = Header.FromString(header)
        peer = self._membership.peers().get(to)
        if peer is None or parsed.view != self._membership.view:
            self._traffic.dropped["sent outside the view"] += 1
            self._end.write(*freed)
            return
        self._transfer += 1
        self._link(peer).send(Outgoing(self._transfer, priority, parsed, view, lambda: self._end.write(*freed)))

    def _enter(self, view: int, members: list[control.Member], needed: list[str] | None) -> None:
        """``needed``: with whom this node exchanges anything; None: with all. What is sent to another member all the
        same opens a connection then; to one that cannot be dialled it does not come, and is told as lost."""
        self._membership.enter(view, members)
        peers = self._membership.peers()
        self._needed = peers.keys() if needed is None else peers.keys() & set(needed)
        wanted = {name: peer for name, peer in peers.items() if name in self._needed}
        for name in self._links.keys() - wanted.keys():
            self._spawn(self._links.pop(name).close())
        for peer in wanted.values():
            link = self._link(peer)
            link.drop(lambda header: header.view not in (0, view))
            link.tell_again()
        self._inbound.view_changed()

    def _leave(self) -> None:
        """Links stay open: most peers will be in the next view, and a warm connection is worth keeping."""
        self._membership.leave()
        for link in self._links.values():
            link.drop(lambda header: header.view != 0)
        self._inbound.view_changed()

    async def _call(self, number: int, method: str, arguments: list[Any]) -> None:
        """A blocking call of the trainer: describe, fetch, measure, statistics."""
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
                payload = str(self._uplink()).encode()
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

    def _store(self, step: int, file: str, start: int, length: int, files: int, meta: str) -> None:
        view = int(json.loads(meta).get("view", 0))
        for old in self._uploads.put(Upload(step, file, start, length, files, meta, view)):
            log.info("%s of step %d is not sent any more: step %d is there", file, old.step, step)
            self._end.write(int(From.FREED), old.start, 0)
        if not self._storing:
            self._storing = True
            self._spawn(self._store_all())

    async def _store_all(self) -> None:
        """One file after the other: more at once would only take from the rounds."""
        try:
            while (one := self._uploads.next()) is not None:
                payload = self._send_arena.view(one.start, one.length)
                try:
                    await self._artifacts.store(
                        one.step, one.file, payload, one.files, one.meta, self._urgent_waiting, one.view
                    )
                except FarflungError as error:
                    self._warn(str(error))
                finally:
                    self._end.write(int(From.FREED), one.start, 0)
        finally:
            self._storing = False

    def _urgent_waiting(self) -> bool:
        return any(link.queue.urgent(2) for link in self._links.values())

    # ---- to the trainer and the coordinator ------------------------------------------------

    def _received(self, sender: str, header: bytes, payload: bytes | tuple[int, int]) -> None:
        self._end.write(int(From.RECEIVED), sender, header, payload)

    def _ordered(self, order: control.Order) -> None:
        """Orders go to the trainer, except Measure, which is answered here without disturbing it."""
        if self._control is not None:
            self._me.round_trips[""] = self._control.round_trip_s
        if order.WhichOneof("kind") == "measure":
            self._spawn(self._measure_and_report(list(order.measure.peers)))
        elif order.WhichOneof("kind") == "clock":
            if self._control is not None:
                answer = control.ClockAnswer(number=order.clock.number, monotonic=time.monotonic())
                self._control.report(control.Report(clock=answer))
        elif order.WhichOneof("kind") == "certificate":
            if self._renewed is not None and not self._renewed.done():
                self._renewed.set_result(order.certificate)
        elif order.WhichOneof("kind") == "revoked":
            self._membership.revoked = frozenset(order.revoked.nodes)
            self._inbound.view_changed()
        else:
            self._end.write(int(From.ORDER), order.SerializeToString())

    async def _keep_certificate(self, life: float) -> None:
        """Have the certificate renewed after two thirds of its life; until it is, ask again."""
        request = identity.certificate_request(self.config.key, self.config.name)
        while True:
            await asyncio.sleep(life * 2 / 3)
            self._renewed = asyncio.get_running_loop().create_future()
            while not self._renewed.done():
                assert self._control is not None
                self._control.report(control.Report(renew=control.Renew(certificate_request=request)))
                await asyncio.wait([self._renewed], timeout=min(60.0, life / 12))
            renewed = self._renewed.result()
            life = renewed.life
            # From the next connection on; those that are open live on.
            self._me.credentials = replace(self._me.credentials, certificate=renewed.certificate)
            await self._connect_to_itself()  # so that gRPC takes it now, and not with two connections at one moment

    async def _connect_to_itself(self) -> None:
        host, _ = split_address(self.config.listen)
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(host, self._port)
            writer.close()

    def _lost(self, link: PeerLink, why: str) -> None:
        if self._membership.members.get(link.peer.name) != link.peer:
            return  # it was only measured
        log.info("lost %s: %s", link.peer.name, why)
        if self._membership.view:
            self._end.write(int(From.PEER_LOST), link.peer.name, why)
        if self._control is not None and link.peer.name in self._needed:
            self._control.report(control.Report(evidence=control.Evidence(peer=link.peer.name, why=why)))

    def _back(self, link: PeerLink) -> None:
        """A connection that was lost is there again: what was on its way goes again, and nothing is lost."""
        if self._control is not None and link.peer.name in self._needed:
            self._control.report(control.Report(evidence=control.Evidence(peer=link.peer.name, mended=True)))

    def _warn(self, message: str) -> None:
        log.warning("%s", message)
        if self._control is not None:
            self._control.report(control.Report(warning=control.Warning(message=message, node=self.config.name)))

    # ---- measuring links -------------------------------------------------------------------

    async def _measure(self, peers: list[control.Member]) -> control.Links:
        links = control.Links()
        # All connections first: a peer that can't dial this node measures meanwhile too.
        for link in [self._link(peer) for peer in peers if peer.name != self.config.name]:
            measured = await measure(link, self.config.name, self._next_transfer, BURST_BYTES, self._probe_patience())
            if not link.closed:
                links.links.append(measured)
                self._me.round_trips[link.peer.name] = 2 * measured.latency_s
                self._fastest = max(self._fastest, measured.bandwidth_bps)
        return links

    def _probe_patience(self) -> float:
        """Seconds that a link may take to connect: as many round trips as the control stream's, which may be longer."""
        opening = self._control.opening_s if self._control is not None else 0.0
        return self.config.probe_patience + 2 * opening

    def _moved(self) -> int:
        """The mark of a heartbeat: it changes while anything moves here."""
        return self._last_action.work + self._traffic.came

    async def _watch_links(self) -> None:
        """What training itself shows of the links; goes out with the reports of steps."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            figures = {name: link.figures for name, link in self._links.items()}
            self._traffic.watch.tick(time.monotonic(), figures, self._traffic.arrived)
            self._last_action.tell_arrived(self._traffic.came)

    def _uplink(self) -> float:
        limit = self.config.max_upload
        return min(self._fastest, limit) if limit and self._fastest else self._fastest or limit

    async def _measure_and_report(self, peers: list[control.Member]) -> None:
        links = await self._measure(peers)
        if self._control is not None:
            self._control.report(control.Report(links=links))

    def _next_transfer(self) -> int:
        self._transfer += 1
        return self._transfer

    def _link(self, peer: control.Member) -> PeerLink:
        """The one link to this session of a peer; a second stream would supersede the first at the other end."""
        link = self._links.get(peer.name)
        if link is not None and link.peer == peer:
            return link
        if link is not None:
            self._spawn(link.close())
        receiving = None
        if self._me.dials_out:
            receiving = Receiving(self._me, peer, self._traffic, self._inbound)
            receiving.task.add_done_callback(self._finished)
        link = PeerLink(
            self._me,
            peer,
            self._traffic,
            on_lost=self._lost,
            on_back=self._back,
            offers=self._inbound.offers,
            receiving=receiving,
        )
        link.task.add_done_callback(self._finished)
        self._links[peer.name] = link
        return link

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the I/O process failed", exc_info=error)
            self._end.close()  # the trainer then ends too: better than half a node


async def serve_trainer(pipe: socket.socket, send_arena: Arena, receive_arena: Arena) -> None:
    """Runs one I/O process on this loop until the trainer closes or is gone."""
    loop = asyncio.get_running_loop()
    messages: asyncio.Queue[tuple[Any, ...] | None] = asyncio.Queue()
    _, end = await loop.create_connection(
        lambda: LoopEnd(messages.put_nowait, lambda: messages.put_nowait(None)), sock=pipe
    )
    first = await messages.get()
    if first is None:
        return
    process = IoProcess(WireConfig(**first[1]), end, send_arena, receive_arena)
    farewell: tuple[str, float] = ("", 0.0)
    try:
        await process.start()
        while (message := await messages.get()) is not None:
            if message[0] == To.CLOSE:
                farewell = (message[1], message[2])
                break
            process.take(message)
    finally:
        await process.stop(*farewell)
        end.close()


def main(arguments: list[str]) -> None:
    """Arguments: descriptors of the pipe and of the two arenas, and the arenas' size."""
    keep_freed_memory()
    # A signal to the whole group is the trainer's: it says goodbye, and then this process ends with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    set_up_logs()
    pipe, send, receive, size = map(int, arguments)
    arenas = [Arena(descriptor, size) for descriptor in (send, receive)]
    os.close(send)
    os.close(receive)
    work = serve_trainer(socket.socket(fileno=pipe), *arenas)
    try:
        import uvloop
    except ImportError:  # not made for Windows
        asyncio.run(work)
    else:
        uvloop.run(work)


if __name__ == "__main__":
    main(sys.argv[1:])
