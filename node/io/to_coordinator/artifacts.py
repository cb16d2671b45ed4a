"""Fetch artifacts from the coordinator (tokens, weights of a pretrained model, checkpoints) and store files there.

Every piece of a fetched artifact is checked against its digest; after a wrong or truncated piece the fetch goes on from
the end of the last good one. The channels are not the control stream's, so that bulk never delays a heartbeat.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from ....proto.connections import rpc
from ....proto.control_pb2 import Artifact, ArtifactName, Range, Shard, ShardHeld, ShardName
from ....proto.errors import FarflungError, Parted, RunFailed
from ....proto.words.border import printable
from ....proto.words.fields import checked
from ...peers.greeting import FIRST_PAUSE, LONGEST_PAUSE
from ...peers.traffic import OTHER, Traffic

PATIENCE = 120.0
"""Seconds without a good piece after which a fetch or a store gives up."""
RANGE = 32 << 20
"""Bytes asked for at once, at most (at least one piece)."""
MOST = 1 << 50
"""Bytes of an artifact, at most."""
BAD_PIECES = 5
"""So many wrong digests of one piece mean that the coordinator's copy is damaged."""

_FINAL = frozenset(
    {
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


class Artifacts:
    """Describe, fetch and store with retries. Lives on one event loop."""

    def __init__(
        self,
        address: str,
        credentials: rpc.Credentials,
        metadata: tuple[tuple[str, str], ...],
        traffic: Traffic,
        patience: float = PATIENCE,
    ) -> None:
        self._address, self._credentials, self._metadata = address, credentials, metadata
        self._traffic, self._patience = traffic, patience
        self._channel: grpc.aio.Channel | None = None
        self._described: dict[str, Artifact] = {}

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close(None)
            self._channel = None

    async def describe(self, name: str, patient: bool = False) -> Artifact:
        """Size, pieces and digests. FarflungError if there is no such artifact, Parted if the coordinator does not
        answer within the patience (``patient``: without limit)."""
        effort, described = _Effort(f"describe {name}", math.inf if patient else self._patience), 0
        while True:
            try:
                artifact: Artifact = await self._stub().Describe(ArtifactName(name=name), metadata=self._metadata)
            except grpc.RpcError as error:
                await effort.failed(error)
                continue
            if artifact.described:  # a large file takes minutes to read
                if artifact.described != described:
                    described = artifact.described
                    effort.progress()
                    self._traffic.took_in(1)
                await effort.stands(f"{described} of {artifact.size} bytes are read")
                continue
            size, pieces = artifact.piece_size, len(artifact.piece_digests)
            known = bool(size) and pieces == -(-artifact.size // size)
            if artifact.size > MOST or (artifact.size and not known):
                raise RunFailed(
                    f"the coordinator describes {name} as {artifact.size} bytes in {pieces} pieces of {size}",
                    "do node and coordinator have the same version of farflung?",
                )
            self._described[name] = artifact
            return artifact

    async def fetch(self, name: str, offset: int, length: int | None, patient: bool = False) -> bytearray:
        """Bytes [offset, offset + length) of an artifact (length None: to its end), verified piece by piece.
        ``patient``: wait without limit for a coordinator that is away."""
        if name.startswith("checkpoint/") and name.endswith("/manifest.json"):  # its files may have been replaced
            folder = name.rpartition("/")[0] + "/"
            self._described = {other: one for other, one in self._described.items() if not other.startswith(folder)}
        artifact = self._described.get(name) or await self.describe(name, patient)
        end = artifact.size if length is None else offset + length
        if not 0 <= offset <= end <= artifact.size:
            raise FarflungError(
                f"bytes {offset} to {end} of {name}, which has {artifact.size}", "ask for what is there"
            )
        if offset == end:
            return bytearray()
        size = artifact.piece_size
        first, last = offset // size, (end - 1) // size
        try:
            data = bytearray(min((last + 1) * size, artifact.size) - first * size)
        except MemoryError:
            raise RunFailed(f"{name} has {artifact.size} bytes, which this machine cannot hold") from None
        effort = _Effort(f"fetch {name}", math.inf if patient else self._patience)
        piece, bad = first, 0
        while piece <= last:
            until = min(last + 1, piece + max(1, RANGE // size))
            try:
                good = await self._pieces(artifact, piece, until, memoryview(data)[(piece - first) * size :])
            except grpc.RpcError as error:
                await effort.failed(error)
                continue
            bad = 0 if good else bad + 1
            if bad >= BAD_PIECES:
                raise RunFailed(
                    f"piece {piece} of {name} came with a wrong digest {BAD_PIECES} times",
                    "the coordinator's copy is damaged: start it again with the same job",
                )
            if good:
                effort.progress()
            piece += good
        return data[offset - first * size : end - first * size]

    async def store(
        self,
        step: int,
        file: str,
        payload: memoryview,
        files: int,
        meta: str,
        *,
        yield_to: Callable[[], bool],
        view: int = 0,
    ) -> bool:
        """Streams one file of a checkpoint; returns whether this file completes the checkpoint, or is not needed.

        When a stream breaks, the next one begins where the coordinator says that the first ended. Between two pieces
        this call waits while ``yield_to()`` is true: more urgent bytes wait. FarflungError with the coordinator's
        sentence if the coordinator refuses; while the coordinator is away, this call waits.
        """
        effort = _Effort(f"store {file} of step {step}", math.inf)  # no other work waits for this
        sent = _Sent(payload)
        begin = 0
        while True:
            try:
                shards = self._shards(step, file, sent, begin, files, meta, view=view, yield_to=yield_to, effort=effort)
                reply = await self._stub().Store(shards, metadata=self._metadata)
            except grpc.RpcError as error:
                await effort.failed(error)
                held = await self._held(ShardName(step=step, file=file, view=view, size=len(payload)), effort)
                if held.complete:
                    return True
                begin = min(held.offset, len(payload))
                continue
            if reply.refused:
                raise FarflungError(f"the coordinator did not store {file} of step {step}: {checked(reply).refused}")
            return bool(reply.complete)

    async def _held(self, name: ShardName, effort: _Effort) -> ShardHeld:
        """What the coordinator holds of a file that this node was sending."""
        if not name.view:
            return ShardHeld()  # a file outside of checkpoints: small, and always sent whole
        while True:
            try:
                held: ShardHeld = await self._stub().Held(name, metadata=self._metadata)
            except grpc.RpcError as error:
                await effort.failed(error)
                continue
            return held

    async def _pieces(self, artifact: Artifact, piece: int, until: int, into: memoryview) -> int:
        """Fetches pieces [piece, until) into ``into``, which begins with the first. Returns how many good ones came."""
        size = artifact.piece_size
        begin, end = piece * size, min(until * size, artifact.size)
        call = self._stub().Fetch(Range(name=artifact.name, offset=begin, length=end - begin), metadata=self._metadata)
        at, good = begin, 0
        try:
            async for part in call:
                if part.offset != at or at + len(part.data) > end:
                    return good
                into[at - begin : at - begin + len(part.data)] = part.data
                at += len(part.data)
                self._traffic.took_in(len(part.data))
                while good < until - piece and at >= min((piece + good + 1) * size, artifact.size):
                    there = into[good * size : min((good + 1) * size, end - begin)]
                    if hashlib.sha256(there).digest() != artifact.piece_digests[piece + good]:
                        return good
                    good += 1
        except grpc.RpcError:
            if good == 0:
                raise
        finally:
            call.cancel()
        return good

    async def _shards(
        self,
        step: int,
        file: str,
        sent: _Sent,
        at: int,
        files: int,
        meta: str,
        *,
        view: int,
        yield_to: Callable[[], bool],
        effort: _Effort,
    ) -> AsyncIterator[Shard]:
        """The file from byte ``at`` on."""
        while True:
            for _ in range(20):
                if not yield_to():
                    break
                await asyncio.sleep(0.01)
            await self._traffic.uplink.ready()
            data = sent.piece(at, self._traffic.uplink.write)
            last = at + len(data) == len(sent.payload)
            shard = Shard(step=step, file=file, offset=at, data=data, last=last, view=view)
            if last:
                shard.digest, shard.files, shard.meta = sent.digest(), files, meta
            self._traffic.wrote([(OTHER, shard.ByteSize())])
            yield shard
            at += len(data)
            effort.progress()
            if last:
                return

    def _stub(self) -> Any:
        if self._channel is None:
            self._channel = rpc.coordinator_channel(self._address, self._credentials.pinned)
        return rpc.coordinator_stub(self._channel)


class _Sent:
    """A file, and the running digest of the bytes that have been sent at least once."""

    def __init__(self, payload: memoryview) -> None:
        self.payload = payload
        self._hash, self._hashed = hashlib.sha256(), 0

    def piece(self, at: int, length: int) -> bytes:
        """Bytes from ``at`` on. Each byte enters the digest once, however often it is sent."""
        data = bytes(self.payload[at : at + length])
        if (end := at + len(data)) > self._hashed:
            self._hash.update(self.payload[self._hashed : end])
            self._hashed = end
        return data

    def digest(self) -> bytes:
        """The digest of the whole file; valid once all of it was sent."""
        return self._hash.digest()


class _Effort:
    """Retries of one request: for how long it has made no progress, and the pause before the next try."""

    def __init__(self, what: str, patience: float) -> None:
        self._what, self._patience = what, patience
        self.progress()

    def progress(self) -> None:
        self._since, self._pause = time.monotonic(), FIRST_PAUSE

    async def failed(self, error: grpc.RpcError) -> None:
        """A try failed: pauses, or raises if another try is useless."""
        why = rpc.why_broken(error)
        if isinstance(error, grpc.aio.AioRpcError) and error.code() in _FINAL:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:  # the session is over
                raise Parted(f"cannot {self._what}: {printable(error.details() or why)}")
            raise FarflungError(f"cannot {self._what}: {printable(error.details() or why)}", "", 4)
        await self.stands(f"last error: {why}")

    async def stands(self, why: str) -> None:
        """No progress: pauses, or raises Parted when there has been none for ``patience`` seconds."""
        if time.monotonic() - self._since > self._patience:
            raise Parted(
                f"cannot {self._what}: tried for {self._patience:.0f} s, {why}",
                "is the coordinator running?",
            )
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
