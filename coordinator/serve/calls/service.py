"""The coordinator's gRPC methods: they check the caller and call the run. Thin on purpose."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from ....job.data.tokenizer_folder import load_tokenizer
from ....job.shared import told
from ....proto import control_pb2 as pb
from ....proto.connections import rpc
from ....proto.connections.door import Door
from ....proto.connections.sockets import end_of
from ....proto.errors import FarflungError, NotNow, Refused
from ....proto.words.border import Hostile
from ....proto.words.fields import checked
from ...data.artifacts import Artifacts, NoArtifact
from ...data.corpus.streams import SourceUnreachable
from ...run.nodes.attendance import Attendance
from ...run.people.commands import Command
from ...run.run import Run
from ...store.engines.database import LeaseLost
from ...trust.tickets import check_operator, check_ticket
from .files import FileStore
from .joining import Identity, Joining

log = logging.getLogger(__name__)

Context = Any  # grpc.aio.ServicerContext
_FIRST_REPORT_S = 10.0
_LAST_WORDS_S = 0.3


class CoordinatorService(rpc.CoordinatorServicer):
    """All methods of ``service Coordinator``."""

    def __init__(self, run: Run, artifacts: Artifacts, identity: Identity, door: Door | None = None) -> None:
        """``door``: is told which connections have shown a secret."""
        self._run, self._artifacts, self._identity = run, artifacts, identity
        self._door = door or Door()
        self._readers = ThreadPoolExecutor(thread_name_prefix="read")  # for long reads
        self._joining, self._files = Joining(run, identity), FileStore(run)

    # ---- joining -----------------------------------------------------------------------------

    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.JoinReply:
        """Admit a node; a refusal is one sentence, a newline, and what to do."""
        self._door.proved(end_of(context.peer()))  # its ticket was checked before its message was read (gate.py)
        try:
            return await self._joining.join(request, str(context.peer()))
        except FarflungError as error:
            log.info("refused a join: %s", error.message)
            passes = isinstance(error, NotNow) or not isinstance(error, Refused)
            return pb.JoinReply(refused=error.told, passes=passes, over=self._run.is_over)

    # ---- the control stream --------------------------------------------------------------------

    async def Attend(self, requests: AsyncIterator[pb.Report], context: Context) -> AsyncIterator[pb.Order]:
        """The control stream: takes reports and sends orders, for a session's whole life."""
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
        context.add_done_callback(lambda _: reader.cancel())  # a read of an ended call may never return
        try:
            while (order := await stream.queue.get()) is not None:
                yield order
                if order.WhichOneof("kind") == "stop":
                    # The node's goodbye ends the stream; a node that sends none is dropped after the timeout.
                    await asyncio.wait([reader], timeout=_FIRST_REPORT_S)
                    break
            # Cancelling the read would end the call as cancelled, and the node would not know that its goodbye has
            # arrived.
            await asyncio.wait([reader], timeout=_LAST_WORDS_S)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            self._run.detach(stream, "connection lost")

    async def _read(self, stream: Attendance, requests: AsyncIterator[pb.Report]) -> None:
        """Pass reports to the run until the stream ends. A clean end does not count as a goodbye; only a Goodbye
        does."""
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
                except Exception:  # a faulty report must not end the stream: the next one may be fine
                    log.exception("a %s of %s could not be taken", report.WhichOneof("kind"), stream.name)
        except rpc.BROKEN as error:
            log.info("the control stream of %s broke: %s", stream.name, rpc.why_broken(error))
        except LeaseLost as error:
            log.info("a report of %s came too late: %s", stream.name, error.message)
        except Exception:  # nothing awaits this task, so its errors are logged here
            log.exception("a report of %s could not be taken", stream.name)
        finally:
            stream.queue.put_nowait(None)

    def _renew(self, stream: Attendance, request: bytes) -> None:
        """Send a new certificate for the key with which the node joined; other keys are refused."""
        authority, row = self._identity.authority, self._run.context.store.nodes.named(stream.name)
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
        """The bytes of a checkpoint's file that have arrived: its next stream begins there."""
        return await self._files.held(await self._caller(context), request)

    async def Store(self, requests: AsyncIterator[pb.Shard], context: Context) -> pb.StoreReply:
        """One file of a checkpoint, or a trace."""
        return await self._files.take(await self._caller(context), requests)

    # ---- people --------------------------------------------------------------------------------

    async def Status(self, request: pb.StatusRequest, context: Context) -> pb.StatusReply:
        """The run's status as JSON, for a caller with any ticket."""
        self._door.proved(end_of(context.peer()))
        try:
            self._check_run(request.run)
            check_ticket(self._run.context.store, request.ticket, time.time(), take_use=False)
            return pb.StatusReply(status=json.dumps(self._run.status(self._identity.state)))
        except FarflungError as error:
            return pb.StatusReply(refused=error.told)

    async def Command(self, request: pb.CommandRequest, context: Context) -> pb.CommandReply:
        """A person's command, from a caller with an operator's ticket."""
        self._door.proved(end_of(context.peer()))
        try:
            number = self._check_operator(request)
            by = request.by or f"the holder of ticket {number}"
            command = Command(request.command, request.node, request.argument, by, request.why)
            return pb.CommandReply(answer=await self._run.operator.commanded(command))
        except FarflungError as error:
            return pb.CommandReply(refused=error.told)

    async def Profile(self, request: pb.ProfileRequest, context: Context) -> AsyncIterator[pb.ProfilePart]:
        """Traces of the nodes' next steps, for a caller with an operator's ticket."""
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
        """A text that a pipeline writes while it trains, for a caller with an operator's ticket."""
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
