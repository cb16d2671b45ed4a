"""Received messages that the trainer has not taken yet, bounded in bytes.

Above the limit the streams are not read, so gRPC's flow control stops the senders. If no message waits for the trainer,
any message is admitted: a message waits only for messages that the trainer can take, so there is no deadlock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from ...ipc.arena import Arena
from ...ipc.pipe import INLINE_LIMIT


class ArenaFull(Exception):
    """No room in the arena for a message, although no message waits for the trainer."""


class Inbox:
    """Delivers to the trainer. ``write(sender, header, payload)`` puts a message on the pipe."""

    def __init__(self, arena: Arena, limit: int, write: Callable[[str, bytes, bytes | tuple[int, int]], None]) -> None:
        self._arena = arena
        self._limit = limit
        self._write = write
        self.held = 0
        """Bytes that wait for the trainer."""
        self._taken = asyncio.Event()

    @property
    def largest(self) -> int:
        """The most bytes of one message, and of all incomplete messages of one peer together, so that other peers have
        room too."""
        return self._arena.size // 2

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
        self.held += len(payload)
        self._write(sender, header, payload)

    def deliver_block(self, sender: str, header: bytes, start: int, length: int) -> None:
        self.held += length
        self._write(sender, header, (start, length))

    def lend(self, payload: bytes | bytearray) -> bytes | tuple[int, int]:
        """A payload that this process made (an artifact), for the trainer: bytes, or (start, length) of a block."""
        start = None
        if len(payload) > INLINE_LIMIT:
            start = self._arena.take(len(payload))
            if start is None:
                raise ArenaFull(f"no {len(payload)} bytes free")
            self._arena.view(start, len(payload))[:] = payload
        self.held += len(payload)
        return bytes(payload) if start is None else (start, len(payload))

    def taken(self, count: int, free: Iterable[int]) -> None:
        """The trainer has taken ``count`` bytes and no longer uses the blocks that start at ``free``."""
        self.held -= count
        for start in free:
            self._arena.give_back(start)
        self._taken.set()
