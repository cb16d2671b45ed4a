"""What arrived and the trainer has not taken yet, bounded in bytes.

Over the limit the streams are simply not read on, so gRPC's flow control stops the senders. A message is admitted in
any case when the trainer holds nothing: only what the trainer can take may make others wait, so nothing is stuck.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from .handover import INLINE_LIMIT
from .shared_memory import Arena


class ArenaFull(Exception):
    """No room in the arena for a message, although the trainer holds nothing."""


class Inbox:
    """Delivers to the trainer. ``write(sender, header, payload)`` puts a message on the pipe."""

    def __init__(self, arena: Arena, limit: int, write: Callable[[str, bytes, bytes | tuple[int, int]], None]) -> None:
        self._arena = arena
        self._limit = limit
        self._write = write
        self._inline = 0  # bytes on the pipe that the trainer has not taken
        self._blocks: dict[int, int] = {}  # blocks that the trainer has not taken: start -> length
        self._block_bytes = 0
        self._taken = asyncio.Event()

    @property
    def largest(self) -> int:
        """Bytes of the largest message, and of one peer's incomplete ones together: the others need room too."""
        return self._arena.size // 2

    @property
    def held(self) -> int:
        """Bytes that wait for the trainer."""
        return self._inline + self._block_bytes

    async def room(self, length: int) -> None:
        """Waits until `length` more bytes may come in."""
        while self.held and self.held + length > self._limit:
            self._taken.clear()
            await self._taken.wait()

    async def block(self, length: int) -> int:
        """The address of a block for a message of `length` bytes, waiting for room. ArenaFull if there can be none."""
        await self.room(length)
        while (start := self._arena.take(length)) is None:
            if not self.held:
                raise ArenaFull(
                    f"no {length} bytes free for a message ({self._arena.in_use} of {self._arena.size} used)"
                )
            self._taken.clear()
            await self._taken.wait()
        return start

    def view(self, start: int, length: int) -> memoryview:
        return self._arena.view(start, length)

    def discard(self, start: int) -> None:
        """Frees a block that will not be delivered."""
        self._arena.give_back(start)

    def deliver_inline(self, sender: str, header: bytes, payload: bytes) -> None:
        self._inline += len(payload)
        self._write(sender, header, payload)

    def deliver_block(self, sender: str, header: bytes, start: int, length: int) -> None:
        self._blocks[start] = length
        self._block_bytes += length
        self._write(sender, header, (start, length))

    def lend(self, payload: bytes | bytearray) -> bytes | tuple[int, int]:
        """A payload of this process's own (an artifact) for the trainer: bytes, or a block that it takes."""
        if len(payload) <= INLINE_LIMIT:
            self._inline += len(payload)
            return bytes(payload)
        start = self._arena.take(len(payload))
        if start is None:
            raise ArenaFull(f"no {len(payload)} bytes free")
        self._arena.view(start, len(payload))[:] = payload
        self._blocks[start] = len(payload)
        self._block_bytes += len(payload)
        return (start, len(payload))

    def taken(self, inline: int, starts: Iterable[int]) -> None:
        """The trainer has copied these out."""
        self._inline -= inline
        for start in starts:
            self._block_bytes -= self._blocks.pop(start)
            self._arena.give_back(start)
        self._taken.set()
