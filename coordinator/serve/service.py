"""The coordinator's gRPC methods: checks who calls, then hands over to the run. Thin on purpose."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict

from ... import __version__
from ...job.shared import for_nodes, told
from ...job.tokenizer import load_tokenizer
from ...proto import PROTOCOL, names, rpc
from ...proto import control_pb2 as pb
from ...proto.border import Hostile, printable
from ...proto.door import Door
from ...proto.errors import FarflungError, NotNow, Refused
from ...proto.fields import checked
from ...proto.progress import Meter
from ...proto.sockets import end_of
from ..checkpoints.acceptance import Expected, NotAccepted
from ..checkpoints.checkpoints import NotWritten, ShardRefused
from ..checkpoints.uploads import GivenUp, Uploads
from ..data.artifacts import Artifacts, NoArtifact
from ..data.streams import SourceUnreachable
from ..run.nodes.attendance import Attendance
from ..run.nodes.second import check_alone
from ..run.people.commands import Command
from ..run.people.profiling import FILE, received
from ..run.run import Run
from ..store.database import LeaseLost
from ..store.store import NodeRow
from ..trust.clocks import check_clock
from ..trust.identity import (
    NODE_LIFE,
    Authority,
    check_joining,
    check_operator,
    check_ticket,
    digest,
    public_key_digest,
    requested,
)
from .dial_back import Network, caller_of, dial_back

log = logging.getLogger(__name__)

Context = Any  # grpc.aio.ServicerContext
_FIRST_REPORT_S = 10.0
_LAST_WORDS_S = 0.3
_EARLY_S = 30.0
"""How long a checkpoint's file waits for the reports of its step."""


@dataclass(frozen=True)
class Identity:
    """``run``: the run's id; ``authority``: its CA, None without TLS; ``state``: the state folder.

    ``life``: seconds that a node's certificate is good for.
    """

    run: str
    authority: Authority | None
    state: Path
    life: float = NODE_LIFE
    dial_back: tuple[Network, ...] = ()
    """Networks that nodes may be dialled back in, beside the address that a join comes from."""


class CoordinatorService(rpc.CoordinatorServicer):
    """All methods of ``service Coordinator``."""

    def __init__(self, run: Run, artifacts: Artifacts, identity: Identity, door: Door | None = None) -> None:
        """``door``: is told which connections have shown a secret."""
        self._run, self._artifacts, self._identity = run, artifacts, identity
        self._door = door or Door()
        self._readers = ThreadPoolExecutor(thread_name_prefix="read")  # what takes long there holds up nothing else
        self._joining: set[str] = set()
        self._uploads = Uploads(run.context.checkpoints)

    # ---- joining -----------------------------------------------------------------------------

    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.JoinReply:
        """Admit a node; a refusal is one sentence, a newline, and what to do."""
        self._door.proved(end_of(context.peer()))  # its ticket was looked at before its message (gate.py)
        try:
            return await self._join(request, str(context.peer()))
        except FarflungError as error:
            log.info("refused a join: %s", error.message)
            passes = isinstance(error, NotNow) or not isinstance(error, Refused)
            return pb.JoinReply(refused=error.told, passes=passes, over=self._run.is_over)

    async def _join(self, request: pb.JoinRequest, peer: str) -> pb.JoinReply:
        run, store, now = self._run, self._run.context.store, time.time()
        oldest = request.oldest_protocol or request.protocol
        if not oldest <= PROTOCOL <= request.protocol:
            speaks = str(request.protocol) if oldest == request.protocol else f"{oldest} to {request.protocol}"
            message = (
                f"the node speaks protocol {speaks} (farflung {request.version}), "
                f"the coordinator {PROTOCOL} (farflung {__version__})"
            )
            raise Refused(message, f"install the same version on both machines: pip install farflung=={__version__}")
        if request.run != self._identity.run:
            message = f"the link is for run {request.run}, this coordinator has run {self._identity.run}"
            raise Refused(message, "use the link that this coordinator printed")
        if run.is_over:
            raise Refused("the run is over", "start the coordinator again to go on with it")
        name = request.name or self._free_name()
        if why := names.mistake(name):
            raise Refused(why, f"--name: {names.RULE}")
        authority, certificate, key_hash = self._identity.authority, b"", ""
        if authority is not None:
            key_hash = public_key_digest(requested(request.certificate_request))
            try:
                check_clock(request.time, now, self._identity.life)
            except FarflungError as error:
                run.warn("", f"{name} cannot join: {error.message.replace('this machine', 'its machine')}")
                raise
        refusal = run.commands.refusal(name, key_hash, run.state)
        if refusal:
            raise Refused(refusal, "ask the person at the coordinator")
        known = store.node_called(name)
        returns = known is not None and bool(key_hash) and (known.name, known.key_hash) == (name, key_hash)
        check_joining(store, request.ticket, now, take_use=False, returns=returns)
        if not returns:
            self._check_free(name, known)
        elif known is not None:
            asked = run.context.clock()
            await check_alone(lambda: run.lives(name, asked), name, known.address)
        self._joining.add(name)
        try:
            caller, insists = caller_of(peer), not request.may_dial_out
            reached = await dial_back(request.address, caller, insists, self._identity.dial_back)
        finally:
            self._joining.discard(name)
        if not returns:
            check_joining(store, request.ticket, now, take_use=True)
        if authority is not None:
            certificate, _ = authority.sign(request.certificate_request, name, self._identity.life)
        session, secret = secrets.token_hex(8), secrets.token_urlsafe(24)
        _tidy(request.device)
        device = json.dumps(MessageToDict(request.device, preserving_proto_field_name=True))
        row = NodeRow(
            name,
            session,
            digest(secret),
            key_hash,
            reached.address,
            device,
            now,
            dials_out=reached.dials_out,
            ticket=request.ticket.partition(".")[0],
        )
        run.admit(row)
        return pb.JoinReply(
            name=name,
            session=session,
            secret=secret,
            certificate=certificate,
            certificate_life=self._identity.life,
            protocol=PROTOCOL,
            authority=self._identity.authority.nodes if self._identity.authority else b"",
            job=for_nodes(run.context.job).model_dump_json(),
            facts=run.context.facts.model_dump_json(),
            term=run.context.term,
            dials_out=reached.dials_out,
        )

    def _check_free(self, name: str, known: NodeRow | None) -> None:
        """Refused: the name, in whatever case, is somebody else's. With TLS it is so for good."""
        hint = f"choose another name: --name {name}-2"
        called = known.name if known is not None else name
        in_now = {names.folded(other) for other in (*self._run.present, *self._joining)}
        # After a restart of the coordinator a node may be in and not have come back yet.
        is_in = known is not None and known.left_at is None and bool(known.key_hash)
        if is_in or names.folded(name) in in_now:
            raise Refused(f"a node named {called} is in the run already", hint)
        if known is not None and known.key_hash:
            message = f"the name {called} belongs to the node that had it first, and this is another key"
            raise Refused(message, f"{hint}; the node itself comes back with the --cache folder of its first join")

    def _free_name(self) -> str:
        known = (row.name for row in self._run.context.store.nodes())
        taken = {names.folded(name) for name in (*known, *self._joining)}
        number = 1
        while f"node-{number}" in taken:
            number += 1
        return f"node-{number}"

    # ---- the control stream --------------------------------------------------------------------

    async def Attend(self, requests: AsyncIterator[pb.Report], context: Context) -> AsyncIterator[pb.Order]:
        """Reports in, orders out, for a session's whole life."""
        name, session = await self._caller(context)
        try:
            first = await asyncio.wait_for(anext(requests), _FIRST_REPORT_S)
        except (StopAsyncIteration, asyncio.TimeoutError):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first report must be a hello")
        if first.WhichOneof("kind") != "hello" or first.hello.session != session:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first report must be a hello")
        await self._caller(context)  # it may have been fenced meanwhile
        stream = self._run.attach(name, first.hello)
        reader = asyncio.create_task(self._read(stream, requests))
        context.add_done_callback(lambda _: reader.cancel())  # a read of a call that is gone need not end by itself
        try:
            while (order := await stream.queue.get()) is not None:
                yield order
                if order.WhichOneof("kind") == "stop":
                    # Its goodbye ends the stream; who has none to say is let go all the same.
                    await asyncio.wait([reader], timeout=_FIRST_REPORT_S)
                    break
            # A read that is broken off would end the call as cancelled, and its node would not know that it was heard.
            await asyncio.wait([reader], timeout=_LAST_WORDS_S)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            self._run.detach(stream, "connection lost")

    async def _read(self, stream: Attendance, requests: AsyncIterator[pb.Report]) -> None:
        """Hand reports over until the stream ends: a clean end is no goodbye, only a Goodbye is."""
        try:
            async for report in requests:
                try:
                    checked(report)
                    if report.WhichOneof("kind") == "renew":
                        self._renew(stream, report.renew.certificate_request)
                    else:
                        self._run.report(stream, report)
                except LeaseLost:
                    raise
                except Hostile as problem:
                    self._run.warn(stream.name, f"a report of it was refused: {problem.message}")
                except Exception:  # the next one is another matter, and the node is none the worse
                    log.exception("a %s of %s could not be taken", report.WhichOneof("kind"), stream.name)
        except rpc.BROKEN as error:
            log.info("the control stream of %s broke: %s", stream.name, rpc.why_broken(error))
        except LeaseLost as error:
            log.info("a report of %s came too late: %s", stream.name, error.message)
        except Exception:  # nobody waits for this task
            log.exception("a report of %s could not be taken", stream.name)
        finally:
            stream.queue.put_nowait(None)

    def _renew(self, stream: Attendance, request: bytes) -> None:
        """Another certificate for the key that the node joined with, and for no other."""
        authority, row = self._identity.authority, self._run.context.store.node(stream.name)
        if authority is None or row is None:
            return
        try:
            certificate, key = authority.sign(request, stream.name, self._identity.life)
        except Refused as error:
            self._run.warn(stream.name, f"its certificate was not renewed: {error.message}")
            return
        if key != row.key_hash:
            self._run.warn(stream.name, "its certificate was not renewed: it asked for another key")
            return
        renewed = pb.Certificate(certificate=certificate, life=self._identity.life)
        self._run.streams.say(pb.Order(certificate=renewed), stream)

    async def _caller(self, context: Context) -> tuple[str, str]:
        """(name, session) of a node; ends the call when its session is not, or no longer, of this run."""
        found = rpc.parse_session(context.invocation_metadata())
        if found is None or not self._run.sessions.knows(*found):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, rpc.no_session(found))
            raise AssertionError  # abort raises
        self._door.proved(end_of(context.peer()))
        return found[0], found[1]

    # ---- artifacts and checkpoints -------------------------------------------------------------

    async def Describe(self, request: pb.ArtifactName, context: Context) -> pb.Artifact:
        """Size and digests of an artifact."""
        await self._caller(context)
        try:
            return await asyncio.to_thread(self._artifacts.describe, request.name)
        except NoArtifact as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, told(error.message))
            raise

    async def Fetch(self, request: pb.Range, context: Context) -> AsyncIterator[pb.Piece]:
        """A range of an artifact."""
        await self._caller(context)
        try:
            parts = self._artifacts.read(request.name, request.offset, request.length)
            loop = asyncio.get_running_loop()
            while (part := await loop.run_in_executor(self._readers, next, parts, None)) is not None:
                yield pb.Piece(offset=part[0], data=part[1])
        except NoArtifact as error:
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, told(error.message))
        except SourceUnreachable as error:  # the node tries again
            log.warning("%s", error.message)
            await context.abort(grpc.StatusCode.UNAVAILABLE, told(error.message))

    async def Held(self, request: pb.ShardName, context: Context) -> pb.ShardHeld:
        """How much of a checkpoint's file is here of a stream of this session that broke: where the next one begins."""
        owner = await self._caller(context)
        try:
            if self._run.context.checkpoints.has_whole(request.view, request.step, request.file):
                return pb.ShardHeld(complete=True)
            which = request.step, request.file, request.view
            # In a thread: an older stream's last piece may still be on its way to a slow disk.
            return pb.ShardHeld(offset=await asyncio.to_thread(self._uploads.held, owner, *which))
        except GivenUp:
            return pb.ShardHeld(complete=True)

    async def Store(self, requests: AsyncIterator[pb.Shard], context: Context) -> pb.StoreReply:
        """One file of a checkpoint. What cannot be kept is refused, loudly, and training goes on."""
        owner = await self._caller(context)
        name, incoming = owner[0], None
        try:
            async for shard in requests:
                if shard.file.startswith(FILE):
                    return await self._trace(name, shard, requests)
                if incoming is None:
                    wanted = await self._expected(owner, shard)
                    incoming = await asyncio.to_thread(self._uploads.begin, owner, shard, wanted)
                    if incoming is None:
                        return pb.StoreReply(complete=True)
                    meter = Meter(f"storing {shard.file} of step {shard.step}", "bytes", self._run.context.emit)
                complete = await asyncio.to_thread(incoming.write, shard)
                meter.add(len(shard.data))
                if complete is not None:
                    self._run.saving.complete(complete)
                if shard.last:
                    return pb.StoreReply(complete=complete is not None)
            return pb.StoreReply(refused="the stream ended before the file did")
        except GivenUp as error:
            self._run.warn("", error.message)
            return pb.StoreReply()
        except ShardRefused as error:
            self._run.warn(name, f"checkpoint: {error.message}")
            if isinstance(error, NotWritten):
                self._run.saving.not_stored(shard.step, error.message)
            return pb.StoreReply(refused=error.message)
        except OSError as error:  # such as no descriptor left
            why = f"no room for a file of a checkpoint now: {error.strerror or error}"
            self._run.warn(name, why)
            return pb.StoreReply(refused=why)
        finally:
            if incoming is not None:
                await asyncio.to_thread(incoming.close)  # its last piece may still be on the way to the disk

    async def _expected(self, owner: tuple[str, str], shard: pb.Shard) -> Expected:
        """What a file has to be. It may come before the reports of its step do. ShardRefused: its sender may not."""
        deadline = time.monotonic() + _EARLY_S
        while True:
            try:
                return self._run.saving.expects(owner, shard)
            except NotAccepted as error:
                if not error.early or time.monotonic() > deadline:
                    raise ShardRefused(error.why) from None
            await asyncio.sleep(0.05)

    async def _trace(self, name: str, first: pb.Shard, rest: AsyncIterator[pb.Shard]) -> pb.StoreReply:
        """A node's trace, for whoever waits for it."""
        taking = self._run.requests.profiling
        if taking is None or not taking.wants(name, first.file):
            return pb.StoreReply(refused="nobody waits for this trace any more")
        try:
            taking.took(name, await received(first, rest))
        except ShardRefused as error:
            self._run.warn(name, f"its trace was refused: {error.message}")
            taking.missing(name, f"its trace was refused: {error.message}")
            return pb.StoreReply(refused=error.message)
        return pb.StoreReply(complete=True)

    # ---- people --------------------------------------------------------------------------------

    async def Status(self, request: pb.StatusRequest, context: Context) -> pb.StatusReply:
        """The run's status as JSON, for whoever holds a ticket."""
        self._door.proved(end_of(context.peer()))
        try:
            self._check_run(request.run)
            check_ticket(self._run.context.store, request.ticket, time.time(), take_use=False)
            return pb.StatusReply(status=json.dumps(self._run.status(self._identity.state)))
        except FarflungError as error:
            return pb.StatusReply(refused=error.told)

    async def Command(self, request: pb.CommandRequest, context: Context) -> pb.CommandReply:
        """A person's command, from whoever holds an operator's ticket."""
        self._door.proved(end_of(context.peer()))
        try:
            number = self._check_operator(request)
            by = request.by or f"the holder of ticket {number}"
            command = Command(request.command, request.node, request.argument, by, request.why)
            return pb.CommandReply(answer=await self._run.commanded(command))
        except FarflungError as error:
            return pb.CommandReply(refused=error.told)

    async def Profile(self, request: pb.ProfileRequest, context: Context) -> AsyncIterator[pb.ProfilePart]:
        """Traces of the nodes' next steps, for whoever holds an operator's ticket."""
        self._door.proved(end_of(context.peer()))
        try:
            self._check_operator(request)
            taking = self._run.requests.profile(request.steps)
        except FarflungError as error:
            yield pb.ProfilePart(refused=error.told)
            return
        try:
            async for part in taking.parts():
                yield part
        finally:
            self._run.requests.profiling = None

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> AsyncIterator[pb.GenerateReply]:
        """A text that a pipeline writes while it trains, for whoever holds an operator's ticket."""
        self._door.proved(end_of(context.peer()))
        try:
            self._check_operator(request)
            tokenizer = await asyncio.to_thread(load_tokenizer, self._run.context.job.data.tokenizer)
            text = self._run.requests.write(request, tokenizer)
        except FarflungError as error:
            yield pb.GenerateReply(refused=error.told)
            return
        try:
            async for part in text.parts():
                yield part
        finally:
            self._run.requests.end_text()

    def _check_operator(self, request: pb.CommandRequest | pb.ProfileRequest | pb.GenerateRequest) -> str:
        """The number of the operator's ticket. Refused: it is of another run, or no operator's."""
        self._check_run(request.run)
        return check_operator(self._run.context.store, request.ticket, time.time())

    def _check_run(self, run: str) -> None:
        if run != self._identity.run:
            raise Refused(f"this coordinator has run {self._identity.run}, not {run}", "use the link that it printed")


def _tidy(device: pb.Device) -> None:
    """What a node says of its device, as it may be shown and planned with; impossible numbers count as unknown."""
    for words in ("kind", "description"):
        setattr(device, words, printable(getattr(device, words)))
    for number in ("tflops", "upload_bps", "hours"):
        if not 0 <= getattr(device, number) < math.inf:
            device.ClearField(number)
