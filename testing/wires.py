"""The wires of nodes inside one process: queues instead of I/O processes and connections."""

from __future__ import annotations

import queue
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..node.device.identity import Identity
from ..node.rounds.protocol.payloads import joined
from ..node.wire.api import Blob, Bytes, Payload
from ..node.wire.events import Event, Received
from ..proto import control_pb2, data_pb2
from ..proto.messages import bodies

Tamper = Callable[[str, str, data_pb2.Header, npt.NDArray[np.uint8]], npt.NDArray[np.uint8] | None]
"""``tamper(sender, to, header, data)`` returns the data to deliver, or None to lose the message."""


class Killed(BaseException):
    """Ends the thread of a node that was killed; otherwise it would live as long as the process."""


class Network:
    """Carries messages between the wires of one process, and the nodes' reports to the coordinator."""

    def __init__(self, artifacts: dict[str, bytes] | None = None) -> None:
        self.artifacts = artifacts or {}
        self.wires: dict[str, LoopbackWire] = {}
        self.reports: queue.Queue[tuple[str, control_pb2.Report]] = queue.Queue()
        self.shards: dict[tuple[int, str], tuple[bytes, dict[str, Any]]] = {}
        self.dead: set[str] = set()
        self.tamper: Tamper | None = None
        self.bytes: dict[int, int] = {}
        """Payload and header bytes that nodes have sent, by kind of message."""

    def wire(self, name: str, identity: Identity | None = None) -> LoopbackWire:
        """A node's wire."""
        self.wires[name] = LoopbackWire(self, name, identity)
        return self.wires[name]

    def carry(self, sender: str, to: str, header: data_pb2.Header, data: npt.NDArray[np.uint8]) -> None:
        """Deliver a message, unless one of the two is dead or ``tamper`` loses it."""
        if sender in self.dead or to in self.dead:
            return
        self.bytes[header.kind] = self.bytes.get(header.kind, 0) + header.ByteSize() + data.nbytes
        if self.tamper is not None:
            changed = self.tamper(sender, to, header, data)
            if changed is None:
                return
            data = changed
        self.wires[to].events.put(Received(sender, header, data))


class LoopbackWire:
    """A node's `Wire` on a network of queues."""

    under_way = False
    """Nothing is ever in flight: a message arrives as soon as it is sent."""

    def __init__(self, network: Network, name: str, identity: Identity | None = None) -> None:
        """``identity``: None, as of a run without TLS."""
        self.network, self.name, self.identity = network, name, identity
        self.doing = ""
        self.while_waiting: Callable[[], None] | None = None
        self.view = self.newest = 0
        self.members: frozenset[str] = frozenset()
        self.early: list[Event] = []
        self.events: queue.Queue[Event] = queue.Queue()
        self.artifacts: dict[str, bytes] = network.artifacts

    def send(self, to: str, header: data_pb2.Header, payload: Payload = b"", priority: int = 1) -> None:
        if not self.view:
            return
        bodies.check(header)
        copy = data_pb2.Header()
        copy.CopyFrom(header)
        copy.view = self.view
        pieces = [payload] if isinstance(payload, bytes | bytearray | memoryview | np.ndarray) else payload
        data = np.frombuffer(b"".join(bytes(piece) for piece in pieces), dtype=np.uint8).copy()
        self.network.carry(self.name, to, copy, data)

    def place(self, blobs: Iterable[Blob], count: int) -> tuple[bytes, ...]:
        return joined(blobs, count)

    def poll(self, timeout: float = 0.0) -> list[Event]:
        found: list[Event] = []
        try:
            found.append(self.events.get(timeout=timeout) if timeout else self.events.get_nowait())
            while True:
                found.append(self.events.get_nowait())
        except queue.Empty:
            if timeout and not found and self.name in self.network.dead:
                raise Killed from None
            return [event for event in self._early_or(found) if self._wanted(event)]

    def _early_or(self, found: list[Event]) -> Iterator[Event]:
        """Holds back messages of a view that this node has not entered yet, as the real wire does."""
        waiting, self.early = self.early + found, []
        for event in waiting:
            if isinstance(event, Received) and event.header.view > self.newest:
                self.early.append(event)
            else:
                yield event

    def _wanted(self, event: Event) -> bool:
        return not isinstance(event, Received) or event.header.view == self.view

    def report(self, report: control_pb2.Report) -> None:
        copy = control_pb2.Report()
        copy.CopyFrom(report)
        self.network.reports.put((self.name, copy))

    def enter(self, view: int, members: Sequence[control_pb2.Member], needed: Collection[str] | None = None) -> None:
        self.view = self.newest = view
        self.members = frozenset(member.name for member in members)

    def leave_view(self) -> None:
        self.view = 0
        self.members = frozenset()

    def worked(self, count: int = 1) -> None:
        """No coordinator asks for this."""

    @property
    def arrived(self) -> int:
        """Every message is whole."""
        return sum(list(self.network.bytes.values()))

    def fetch(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        data = self.artifacts[name]
        return data[offset : None if length is None else offset + length]

    def fetch_later(self, name: str, offset: int, length: int | None) -> Callable[[], bytes]:
        return lambda: self.fetch(name, offset, length)

    def uplink(self) -> float:
        """Bits per second; 0: not known."""
        return 0.0

    def room(self, length: int) -> memoryview:
        return memoryview(bytearray(length))

    def store(self, step: int, file: str, payload: Bytes, files: int, meta: dict[str, Any]) -> None:
        self.network.shards[step, file] = (bytes(payload), meta)
