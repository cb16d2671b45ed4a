"""The wire of a node: the trainer's end of its I/O process (see api.py for what it promises)."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict
from itertools import chain
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from ...proto import control_pb2 as control
from ...proto.data_pb2 import Header
from ...proto.errors import FarflungError, Parted, RunFailed
from ...proto.messages import bodies
from ...proto.messages.frame import HEAD_LIMIT
from ..device.identity import Identity
from ..device.memory import memory_at_most
from ..ipc.arena import Arena, LastAction, keep_freed_memory, make_file
from ..ipc.config import WireConfig
from ..ipc.pipe import INLINE_LIMIT, PARTED_STATUS, From, To, TrainerEnd
from ..peers.header_compression import MARK
from .api import Bytes, Payload
from .blocks import Blocks
from .events import CoordinatorBack, CoordinatorLost, Event, OrderEvent, PeerLost, Received
from .spawn import IoHost

__all__ = [
    "CoordinatorBack",
    "CoordinatorLost",
    "Event",
    "OrderEvent",
    "PeerLost",
    "ProcessWire",
    "Received",
    "WireConfig",
]

HEADER_LIMIT = HEAD_LIMIT // 2
START_TIMEOUT = 30.0
CLOSE_TIMEOUT = 10.0


class ProcessWire:
    """The trainer's end of the I/O process: the `Wire` of a real run.

    Every call may raise RunFailed when the I/O process has ended: the trainer then ends too. Every call also counts as
    a sign of the trainer's life; ``doing`` says in words what it is at, for the coordinator's status.
    """

    def __init__(self, config: WireConfig, end: TrainerEnd, arenas: tuple[Arena, Arena], host: IoHost) -> None:
        self.config = config
        self.view = 0
        self.dropped = 0  # messages of an older view that were already on the pipe, or sent outside the view
        signs = config.authority and config.certificate and config.key
        self.identity = Identity(config.run, config.key, config.certificate, config.authority) if signs else None
        """What this node proves itself with to the others; None: without TLS."""
        self.members: frozenset[str] = frozenset()
        self._end, self._host = end, host
        self._blocks = Blocks(*arenas)
        self._last_action = LastAction(self._blocks.first_page)
        self._doing = "starting"
        self._events: deque[Event] = deque()
        self._pending = 0  # bytes that wait for the network
        self._replies: dict[int, tuple[Any, ...]] = {}
        self._unwanted: set[int] = set()
        """Calls for whose answer nobody waits any more."""
        self.while_waiting: Callable[[], None] | None = None
        """What the trainer does while it waits for data that may take long: it must hear when its view ends."""
        self._calls = 0
        self._closed = False
        self._listening: int | str | None = None

    @staticmethod
    def start(config: WireConfig, process: bool = True) -> ProcessWire:
        """Starts the I/O process (or, for tests, a task of the shared I/O thread) and waits until it listens.

        FarflungError when the address cannot be bound.
        """
        if process:
            keep_freed_memory()  # in this process too: received payloads are large, and short-lived
        size = max(4 << 30, memory_at_most())
        descriptors = (make_file(size), make_file(size))
        ours, theirs = socket.socketpair()
        try:
            arenas = (Arena(descriptors[0], size), Arena(descriptors[1], size))
            host = IoHost(theirs, descriptors, size, process)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        wire = ProcessWire(config, TrainerEnd(ours, host.ended), arenas, host)
        wire._last_action.did(wire._doing)
        try:
            wire._begin()
        except BaseException:
            wire.close("")
            raise
        return wire

    # ---- messages --------------------------------------------------------------------------

    def send(self, to: str, header: Header, payload: Payload = b"", priority: int = 1) -> None:
        """Copies the payload (the pieces of a sequence one after the other; not what ``place`` made) and returns; the
        order of messages to one peer is kept within a priority (0 activations and gradients, 1 rounds, 2 state).

        Run, session and, where it is 0, the view are filled in. A message of another view than the current one is
        dropped and counted. To this node itself it goes straight to `poll`. ValueError: `to` is not a member.

        Waits only when config.send_limit bytes wait for the network, and then takes in what arrives meanwhile; an
        order or a lost peer ends that wait.
        """
        self._alive()
        if not 0 <= priority <= 2:
            raise ValueError(f"priority {priority} is not 0, 1 or 2")
        if header.ByteSize() > HEADER_LIMIT:
            raise ValueError(f"a header of {header.ByteSize()} bytes: long lists belong into the payload")
        bodies.check(header)
        body = bodies.sectioned(header)
        if body is not None and body.section.startswith(MARK):
            raise ValueError(f"a section's name must not begin with {MARK!r}")
        if header.view not in (0, self.view) or not self.view:
            self.dropped += 1
            return
        if to not in self.members:
            raise ValueError(f"{to} is not a member of view {self.view}")
        if not header.view:
            header.view = self.view
        pieces = _pieces(payload)
        length = sum(map(len, pieces))
        if to == self.config.name:
            whole = Header()
            whole.CopyFrom(header)
            whole.run, whole.session = self.config.run, self.config.session
            self._events.append(Received(to, whole, _joined(pieces, np.empty(length, np.uint8))))
            return
        handed: bytes | tuple[int, int]
        self._wait_for_room(length)
        if length <= INLINE_LIMIT:
            handed = b"".join(pieces)
        else:
            handed = (self._blocks.fly(self._laid(pieces), length), length)
        self._pending += length
        self._end.write(int(To.SEND), to, priority, header.SerializeToString(), handed)

    def place(self, blobs: Iterable[Sequence[Bytes]], count: int) -> memoryview:
        """The blobs, which come in pieces, one after the other, where `send` finds them without a copy, however often
        they are sent. The room is free again when nobody holds the view any more. ``count``: how many there are, none
        of them much longer than the first, if each is to be made only when the one before lies there."""
        rest = iter(blobs)
        first = _pieces(next(rest, ()))
        length = sum(map(len, first))
        room = self._room(max(1, count * (length + length // 16)))
        at = 0
        for pieces in chain((first,), map(_pieces, rest)):
            if at + sum(map(len, pieces)) > len(room):  # each is copied: its pieces may change with the next blob
                whole = [b"".join(each) for each in chain((pieces,), map(_pieces, rest))]
                return self._block([room[:at].data, *_pieces(whole)])
            for piece in pieces:
                room[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
                at += len(piece)
        self._blocks.shorten(room.data, at)
        return room[:at].data

    def poll(self, timeout: float = 0.0) -> list[Event]:
        """Everything that has arrived, in order; waits up to `timeout` seconds for the first. A large payload lies in
        shared memory, which is free again when nobody holds the array, or a view of it, any more."""
        self._alive()
        deadline = time.monotonic() + timeout
        self._read(0.0)
        while not self._events and (left := deadline - time.monotonic()) > 0:
            self._read(left)
        self._alive()
        events = list(self._events)
        self._events.clear()
        return events

    def report(self, report: control.Report) -> None:
        """To the coordinator, now or when it is back. The byte counters of a StepDone are filled on the way."""
        self._alive()
        self._end.write(int(To.REPORT), report.SerializeToString())

    # ---- views -----------------------------------------------------------------------------

    def enter(self, view: int, members: Sequence[control.Member], needed: Collection[str] | None = None) -> None:
        """From here on only messages of this view and its members (this node among them) go out and come in.

        ``needed``: members with whom this node exchanges something: there are connections to these, and a broken one is
        told of. None: all. To another one there is a connection from the first message on."""
        self._alive()
        self._forget(view)
        self.view = view
        self.members = frozenset(member.name for member in members)
        self._end.write(
            int(To.ENTER),
            view,
            [member.SerializeToString() for member in members],
            None if needed is None else sorted(needed),
        )

    def leave_view(self) -> None:
        """The answer to Flush: whatever is queued or has arrived of the old view is dropped."""
        self._alive()
        self._forget(-1)
        self.view = 0
        self.members = frozenset()
        self._end.write(int(To.LEAVE))

    # ---- the coordinator's artifacts -------------------------------------------------------

    def describe(self, name: str) -> control.Artifact:
        """Size and digests of an artifact. Waits. FarflungError if there is none, RunFailed if nobody answers."""
        return control.Artifact.FromString(self._call("describe", name))

    def fetch(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of an artifact (`length` None: to its end), each piece verified. Waits. Errors as describe."""
        return self._call("fetch", name, offset, length)

    def fetch_later(self, name: str, offset: int, length: int | None) -> Callable[[], bytes]:
        """Asks for bytes of an artifact (`length` None: to its end), for as long as it takes; what it returns waits for
        them, and handles what else arrives (``while_waiting``). Raises as describe does, and what that raises: then it
        is to be asked again."""
        number = self._ask("fetch", name, offset, length, True)

        def answer() -> bytes:
            try:
                while number not in self._replies and self.while_waiting is not None:
                    self.while_waiting()
            except BaseException:
                self._unwanted.add(number)
                raise
            return self._answer(number)

        return answer

    def store(self, step: int, file: str, payload: Bytes, files: int, meta: dict[str, Any]) -> None:
        """Streams one of the `files` files of a checkpoint to the coordinator, in the background and behind every other
        message. If it cannot be stored, the coordinator and the log get a warning, and training goes on."""
        self._alive()
        pieces = _pieces(payload)
        block = self._laid(pieces)
        start = self._blocks.fly(block, 0)
        self._end.write(int(To.STORE), step, file, start, len(block), files, json.dumps(meta))

    def room(self, length: int) -> memoryview:
        """So many bytes where `send` and `store` find them without a copy; free again when nobody holds the view.
        Waits while there is no room."""
        self._alive()
        return self._room(length).data

    def measure(self, peers: Sequence[control.Member]) -> control.Links:
        """Latency and bandwidth to each of these (0 for one that cannot be reached). Waits about a second for each.

        The coordinator's Measure order is answered without this.
        """
        return control.Links.FromString(self._call("measure", [peer.SerializeToString() for peer in peers]))

    def statistics(self) -> dict[str, int]:
        """Bytes sent by category, and messages dropped by reason, since the start. Waits for the I/O process."""
        counts: dict[str, int] = json.loads(self._call("statistics"))
        return counts

    def uplink(self) -> float:
        """Bits a second that this node's links have reached, and its owner allows; 0 where none was measured. Waits."""
        return float(self._call("uplink"))

    # ---- life ------------------------------------------------------------------------------

    @property
    def doing(self) -> str:
        """The trainer's last action in words; travels with the heartbeat."""
        return self._doing

    @doing.setter
    def doing(self, words: str) -> None:
        self._doing = words
        self._alive()

    def worked(self, count: int = 1) -> None:
        """So many pieces of work are done: the coordinator waits while this grows, and bytes arrive."""
        self._last_action.worked(count)

    @property
    def arrived(self) -> int:
        """Bytes that have arrived at this node, whole messages or not, as of half a second ago."""
        return self._last_action.arrived

    @property
    def under_way(self) -> bool:
        """Whether something that was sent is not acknowledged yet, or a message has arrived in part."""
        return self._pending > 0 or self._last_action.arriving > 0

    @property
    def port(self) -> int:
        """The port that the node listens on."""
        assert isinstance(self._listening, int)
        return self._listening

    def close(self, why: str, drain: float = 1.0) -> bool:
        """Ends the I/O process: waits up to `drain` seconds for acknowledgements, says goodbye with `why` (nothing is
        said where it is empty). Waits; whether the coordinator has taken the goodbye. May be called again, and after
        the I/O process has died."""
        if self._closed:
            return False
        self._closed = True
        heard = False
        try:
            with contextlib.suppress(RunFailed, OSError):  # it was gone already: what is left is to tidy up
                self._end.write(int(To.CLOSE), why, drain)
                for kind, *values in self._end.wait_for_end(drain + CLOSE_TIMEOUT):
                    heard = heard or (kind == From.PARTED and values[0])
        finally:
            self._end.close()
            self._host.wait(CLOSE_TIMEOUT)
        return heard

    def __enter__(self) -> ProcessWire:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close("" if error is None else f"{type(error).__name__}: {error}"[:200])

    # ---- inside ----------------------------------------------------------------------------

    def _begin(self) -> None:
        self._end.write(int(To.CONFIG), asdict(self.config))
        deadline = time.monotonic() + START_TIMEOUT
        while self._listening is None and time.monotonic() < deadline:
            self._read(deadline - time.monotonic())
        if self._listening is None:
            raise RunFailed(f"the I/O process did not start in {START_TIMEOUT:.0f} s", "is the machine overloaded?")
        if isinstance(self._listening, str):
            raise FarflungError(self._listening, "stop what listens there, or choose another port")

    def _alive(self) -> None:
        self._last_action.did(self._doing)

    def _read(self, timeout: float) -> None:
        """Takes everything off the pipe, and tells the I/O process so."""
        self._tell_taken(0)
        taken = 0
        for message in self._end.read(timeout):
            kind, *values = message
            if kind == From.RECEIVED:
                sender, header, payload = values
                array = self._taken(payload)
                taken += array.nbytes
                parsed = Header.FromString(header)
                if parsed.view == self.view:
                    self._events.append(Received(sender, parsed, array))
                else:
                    self.dropped += 1
            elif kind == From.REPLY:
                number, problem, hint, status, payload = values
                array = self._taken(payload)
                taken += array.nbytes
                if number in self._unwanted:
                    self._unwanted.discard(number)
                else:
                    self._replies[number] = (problem, hint, status, array)
            elif kind == From.FREED:
                start, length = values
                self._pending -= self._blocks.landed(start) if start >= 0 else length
            elif kind == From.ORDER:
                self._events.append(OrderEvent(control.Order.FromString(values[0])))
            elif kind == From.PEER_LOST:
                self._events.append(PeerLost(*values))
            elif kind == From.COORDINATOR_LOST:
                self._events.append(CoordinatorLost(*values))
            elif kind == From.COORDINATOR_BACK:
                self._events.append(CoordinatorBack(*values))
            elif kind in (From.LISTENING, From.FAILED):
                self._listening = values[0]
        self._tell_taken(taken)

    def _taken(self, payload: bytes | tuple[int, int]) -> npt.NDArray[np.uint8]:
        if isinstance(payload, tuple):
            return self._blocks.received(*payload)
        return np.frombuffer(payload, np.uint8).copy()

    def _tell_taken(self, count: int) -> None:
        """The I/O process may take in ``count`` bytes more, and use again the blocks that nobody here holds."""
        free = self._blocks.read_up()
        if count or free:
            self._end.write(int(To.TAKEN), count, free)

    def _wait_for_room(self, length: int) -> None:
        while self._pending and self._pending + length > self.config.send_limit and not self._must_act():
            self._read(1.0)
            self._alive()

    def _must_act(self) -> bool:
        return any(isinstance(event, OrderEvent | PeerLost) for event in self._events)

    def _laid(self, pieces: list[memoryview]) -> memoryview:
        """The pieces in a block of the arena: where they lie, if that is one."""
        return pieces[0] if len(pieces) == 1 and self._blocks.holds(pieces[0]) else self._block(pieces)

    def _block(self, pieces: list[memoryview]) -> memoryview:
        """A copy of the pieces in a block of the arena."""
        return _joined(pieces, self._room(sum(map(len, pieces)))).data

    def _room(self, length: int) -> npt.NDArray[np.uint8]:
        """A block of the arena; waits for acknowledgements when it is full. RunFailed if that cannot help."""
        while (found := self._blocks.room(length)) is None:
            if not self._blocks.flying:
                raise RunFailed(f"no room for a message of {length} bytes", "this machine has too little memory")
            self._read(1.0)
            self._alive()
        return found

    def _call(self, method: str, *arguments: Any) -> bytes:
        return self._answer(self._ask(method, *arguments))

    def _ask(self, method: str, *arguments: Any) -> int:
        self._alive()
        self._calls += 1
        self._end.write(int(To.CALL), self._calls, method, list(arguments))
        return self._calls

    def _answer(self, number: int) -> bytes:
        while number not in self._replies:
            self._read(1.0)
            self._alive()
        problem, hint, status, payload = self._replies.pop(number)
        if problem:
            if status == PARTED_STATUS:
                raise Parted(problem, hint)
            raise (RunFailed if status == RunFailed.status else FarflungError)(problem, hint, status)
        return bytes(payload)

    def _forget(self, view: int) -> None:
        kept = [event for event in self._events if not isinstance(event, Received) or event.header.view == view]
        kept = [event for event in kept if not isinstance(event, PeerLost)]
        self.dropped += sum(isinstance(event, Received) for event in self._events)
        self.dropped -= sum(isinstance(event, Received) for event in kept)
        self._events = deque(kept)


def _pieces(payload: Payload) -> list[memoryview]:
    if isinstance(payload, bytes | bytearray | memoryview | np.ndarray):
        payload = (payload,)
    return [_flat(piece) for piece in payload]


def _flat(piece: Bytes) -> memoryview:
    view: memoryview = np.ascontiguousarray(piece).data if isinstance(piece, np.ndarray) else memoryview(piece)
    return view.cast("B") if view.nbytes else memoryview(b"")


def _joined(pieces: list[memoryview], into: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    at = 0
    for piece in pieces:
        into[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
        at += len(piece)
    return into
