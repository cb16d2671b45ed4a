"""The open control streams: where orders go out. At most one stream is open for each node."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator

from ....proto import control_pb2 as pb
from .attendance import Attendance


class Streams:
    """Iterates over the names of the nodes with an open stream. Nothing here blocks: an order goes into a queue."""

    def __init__(self, term: int) -> None:
        """``term``: every order carries it."""
        self._term = term
        self._open: dict[str, Attendance] = {}
        self.empty = asyncio.Event()
        """Set while no stream is open."""
        self.empty.set()

    def __iter__(self) -> Iterator[str]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, name: object) -> bool:
        return name in self._open

    def get(self, name: str) -> Attendance | None:
        """The open stream of a node."""
        return self._open.get(name)

    def all(self) -> Collection[Attendance]:
        """Every open stream."""
        return self._open.values()

    # ---- opening and closing -------------------------------------------------------------------

    def open(self, name: str, session: str, now: float) -> Attendance:
        """A stream has opened; an older one of the same node ends."""
        old = self._open.get(name)
        if old is not None:
            old.queue.put_nowait(None)
        stream = self._open[name] = Attendance(name, session, now)
        self.empty.clear()
        return stream

    def closed(self, stream: Attendance) -> bool:
        """Remove a stream that has ended. Returns whether it was the node's present one."""
        if self._open.get(stream.name) is not stream:
            return False
        del self._open[stream.name]
        if not self._open:
            self.empty.set()
        return True

    def fence(self, name: str, session: str) -> None:
        """End the stream of a session that is over, if it is still open."""
        stream = self._open.get(name)
        if stream is not None and stream.session == session:
            self.closed(stream)
            stream.queue.put_nowait(None)

    def end_all(self) -> None:
        """Put the end mark into every stream's queue; the gRPC calls then return."""
        for stream in self._open.values():
            stream.queue.put_nowait(None)

    # ---- orders --------------------------------------------------------------------------------

    def tell(self, name: str, order: pb.Order) -> None:
        """Send an order to a node, if its stream is open."""
        stream = self._open.get(name)
        if stream is not None:
            self.say(order, stream)

    def say(self, order: pb.Order, to: Attendance | None = None) -> None:
        """Send an order to one stream, or to all."""
        order.term = self._term
        for stream in [to] if to is not None else self._open.values():
            stream.queue.put_nowait(order)
