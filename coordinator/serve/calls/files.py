"""Files that nodes send: those of checkpoints, and the traces of a profile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from ....proto import control_pb2 as pb
from ....proto.process.progress import Meter
from ...checkpoints.acceptance import Expected, NotAccepted
from ...checkpoints.refused import NotWritten, ShardRefused
from ...checkpoints.uploads import GivenUp, Uploads
from ...run.people.profiling import FILE, received
from ...run.run import Run

EARLY_S = 30.0
"""Seconds that a checkpoint's file waits for the reports of its step."""

Owner = tuple[str, str]
"""(name, session) of the sending node."""


class FileStore:
    """Takes nodes' files. A file that can't be kept is refused with a warning, and training goes on."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._uploads = Uploads(run.context.checkpoints)

    async def held(self, owner: Owner, request: pb.ShardName) -> pb.ShardHeld:
        """The bytes of a checkpoint's file that arrived on a broken stream of this session: the next stream begins
        there."""
        try:
            if self._run.context.checkpoints.has_whole(request.view, request.step, request.file):
                return pb.ShardHeld(complete=True)
            which = request.step, request.file, request.view
            # In a thread, because an older stream's last piece may still be being written to a slow disk.
            return pb.ShardHeld(offset=await asyncio.to_thread(self._uploads.held, owner, *which))
        except GivenUp:
            return pb.ShardHeld(complete=True)

    async def take(self, owner: Owner, shards: AsyncIterator[pb.Shard]) -> pb.StoreReply:
        """Take one file: of a checkpoint, or a trace."""
        async for shard in shards:
            if shard.file.startswith(FILE):
                return await self._trace(owner[0], shard, shards)
            return await self._checkpoint_file(owner, shard, shards)
        return pb.StoreReply(refused=_BROKEN_OFF)

    async def _checkpoint_file(self, owner: Owner, first: pb.Shard, rest: AsyncIterator[pb.Shard]) -> pb.StoreReply:
        name, shard, incoming = owner[0], first, None
        try:
            wanted = await self._expected(owner, first)
            incoming = await asyncio.to_thread(self._uploads.begin, owner, first, wanted)
            if incoming is None:
                return pb.StoreReply(complete=True)
            meter = Meter(f"storing {first.file} of step {first.step}", "bytes", self._run.context.emit)
            async for shard in _all(first, rest):
                complete = await asyncio.to_thread(incoming.write, shard)
                meter.add(len(shard.data))
                if complete is not None:
                    self._run.saving.complete(complete)
                if shard.last:
                    return pb.StoreReply(complete=complete is not None)
            return pb.StoreReply(refused=_BROKEN_OFF)
        except GivenUp as error:
            self._run.warn("", error.message)
            return pb.StoreReply()
        except ShardRefused as error:
            self._run.warn(name, f"checkpoint: {error.message}")
            if isinstance(error, NotWritten):
                self._run.saving.not_stored(shard.step, error.message)
            return pb.StoreReply(refused=error.message)
        except OSError as error:  # for example, no file descriptor is left
            why = f"no room for a file of a checkpoint now: {error.strerror or error}"
            self._run.warn(name, why)
            return pb.StoreReply(refused=why)
        finally:
            if incoming is not None:
                await asyncio.to_thread(incoming.close)  # its last piece may still be being written

    async def _expected(self, owner: Owner, shard: pb.Shard) -> Expected:
        """The requirements on a file. Waits for the reports of its step, which may come later. ShardRefused: the sender
        may not send it."""
        deadline = time.monotonic() + EARLY_S
        while True:
            try:
                return self._run.saving.expects(owner, shard)
            except NotAccepted as error:
                if not error.early or time.monotonic() > deadline:
                    raise ShardRefused(error.why) from None
            await asyncio.sleep(0.05)

    async def _trace(self, name: str, first: pb.Shard, rest: AsyncIterator[pb.Shard]) -> pb.StoreReply:
        """A node's trace, handed to the command that waits for it."""
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


_BROKEN_OFF = "the stream ended before the file did"


async def _all(first: pb.Shard, rest: AsyncIterator[pb.Shard]) -> AsyncIterator[pb.Shard]:
    yield first
    async for shard in rest:
        yield shard
