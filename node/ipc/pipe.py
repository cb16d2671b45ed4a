"""The pipe between the trainer and its I/O process: a socket pair with small tuples on it.

Both ends are the same program on the same machine, so `marshal` encodes the tuples. Bytes from the network are only
`bytes` values inside them, and large payloads stay in shared memory (arena.py).
"""

from __future__ import annotations

import asyncio
import enum
import marshal
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

from ...proto.errors import RunFailed

INLINE_LIMIT = 64 << 10
"""Payloads up to this many bytes go over the pipe itself."""

PARTED_STATUS = -1
"""In a REPLY, the status of an error that is Parted: the node joins again, whatever that error's exit status is."""

_LENGTH = struct.Struct("<I")


class To(enum.IntEnum):
    """First element of a tuple from the trainer to the I/O process."""

    CONFIG = 1  # dict of WireConfig
    SEND = 2  # to, priority, header, payload bytes | (start, length)
    TAKEN = 3  # bytes taken, [starts of blocks that are free again]
    REPORT = 4  # control_pb2.Report
    ENTER = 5  # view, [control_pb2.Member], names to keep a connection to | None for all
    LEAVE = 6
    CALL = 7  # call id, method, arguments
    STORE = 8  # step, file, start, length, files, meta as JSON
    CLOSE = 9  # why, seconds to wait for acknowledgements


class From(enum.IntEnum):
    """First element of a tuple from the I/O process to the trainer."""

    LISTENING = 1  # port
    FAILED = 2  # message
    RECEIVED = 3  # sender, header, payload bytes | (start, length)
    FREED = 4  # start of a block, or -1 and inline bytes
    ORDER = 5  # control_pb2.Order
    PEER_LOST = 6  # peer, why
    COORDINATOR_LOST = 7  # why
    COORDINATOR_BACK = 8  # term
    REPLY = 9  # call id, error sentence | "", hint, exit status | PARTED_STATUS, bytes | (start, length)
    PARTED = 10  # whether the coordinator has taken the goodbye


class Unpacker:
    """Decodes tuples from a stream of bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Any, ...]]:
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            end = at + _LENGTH.size + length
            if end > len(self._buffer):
                break
            yield marshal.loads(memoryview(self._buffer)[at + _LENGTH.size : end])
            at = end
        del self._buffer[:at]


def pack(message: tuple[Any, ...]) -> bytes:
    """One tuple of plain values as bytes for the pipe."""
    body = marshal.dumps(message)
    return _LENGTH.pack(len(body)) + body


class TrainerEnd:
    """The trainer's end: writes block only briefly (the other side always reads), reads take what has arrived."""

    def __init__(self, pipe: socket.socket, ended: Callable[[], str] = lambda: "has ended") -> None:
        """``ended()``: words that follow "the node's I/O process", such as "has ended"."""
        self._pipe, self._ended = pipe, ended
        self._unpacker = Unpacker()
        self._writing: tuple[bytes, list[int]] = (b"", [])  # bytes to write, and how many each `send` took
        self._poll = select.poll()
        self._poll.register(pipe, select.POLLIN)

    def write(self, *message: Any) -> None:
        """Write one tuple. IoEnded when the I/O process is gone.

        A signal handler may raise in the middle (Ctrl-C): the rest is then written before the next message.
        """
        rest, taken = self._writing
        self._writing = buffer, taken = rest[sum(taken) :] + pack(message), []
        try:
            while (at := sum(taken)) < len(buffer):
                # A signal handler may run between any two bytecodes, so also between the return of `send` and the
                # storing of its result: then the result is lost, and the same bytes are written twice. `extend(map())`
                # stores the result in C code, before a handler can run.
                taken.extend(map(self._pipe.send, (memoryview(buffer)[at:],)))
        except OSError as error:
            raise gone(self._ended()) from error

    def read(self, timeout: float) -> list[tuple[Any, ...]]:
        """All tuples that have arrived; waits up to `timeout` seconds for the first. IoEnded at the pipe's end."""
        messages: list[tuple[Any, ...]] = []
        deadline = time.monotonic() + timeout
        while True:
            left = 0.0 if messages else max(0.0, deadline - time.monotonic())
            if not self._poll.poll(left * 1000.0):
                return messages
            try:
                data = self._pipe.recv(1 << 20, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError as error:
                raise gone(self._ended()) from error
            if not data:
                if messages:  # deliver what arrived before the end first
                    return messages
                raise gone(self._ended())
            messages.extend(self._unpacker.feed(data))

    def wait_for_end(self, timeout: float) -> Iterator[tuple[Any, ...]]:
        """The messages that arrive until the other side has closed the pipe, for at most `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            if self._poll.poll(left * 1000.0):
                data = self._pipe.recv(1 << 20)
                if not data:
                    return
                yield from self._unpacker.feed(data)

    def close(self) -> None:
        self._pipe.close()


class LoopEnd(asyncio.Protocol):
    """The I/O process's end: `on_message` for each tuple, `on_end` when the trainer is gone."""

    def __init__(self, on_message: Callable[[tuple[Any, ...]], None], on_end: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_end = on_end
        self._unpacker = Unpacker()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport has the methods, not the base class

    def data_received(self, data: bytes) -> None:
        for message in self._unpacker.feed(data):
            self._on_message(message)

    def connection_lost(self, _: Exception | None) -> None:
        self._on_end()

    def write(self, *message: Any) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(pack(message))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class IoEnded(RunFailed):
    """The I/O process is gone, and with it all of this node's connections; the other members go on without it."""


def gone(ended: str) -> IoEnded:
    """The error for a trainer whose I/O process is gone. ``ended``: see `TrainerEnd`."""
    return IoEnded(f"the node's I/O process {ended}", "see its last lines above; `farflung join` again")
