"""Gradients that leave a device for main memory, one while the next one is computed.

At most one is under way. When the next one comes, the device takes that one's memory again only after its copy; the
host waits for a copy only where it then adds it to what a pass before has brought, or tells somebody of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ...device.side_stream import COMPUTE, DOWN, Mark, Streams, streams_of


@dataclass
class _Flight:
    """A gradient that is being copied. ``added``: where it goes before it is added to its place; None: to the place."""

    name: str
    gradient: Tensor
    place: Tensor
    added: Tensor | None
    streams: Streams
    mark: Mark


class Leaving:
    """The gradients of a stage on their way to their places."""

    def __init__(self) -> None:
        self.tell: Callable[[str], None] | None = None
        """Called with the name of a parameter when its gradient is in its place. What it raises ends the pass."""
        self._flight: _Flight | None = None
        self._unwaited: tuple[Streams, Mark] | None = None
        """The last copy that the host has not waited for: all before it are done when it is."""

    def send(self, name: str, gradient: Tensor, place: Tensor, adds: bool) -> None:
        """A gradient is complete on its device: copy it to its place, or (``adds``) add it to what is there."""
        self._next()
        streams = streams_of(gradient.device)
        target = streams.room(place) if adds else place
        with streams.on(DOWN, [streams.mark(COMPUTE)]):
            target.copy_(gradient, non_blocking=streams.is_async)
        mark = streams.mark(DOWN)
        self._flight = _Flight(name, gradient, place, target if adds else None, streams, mark)
        self._unwaited = streams, mark

    def land(self) -> None:
        """All that was sent is in its place when this returns."""
        self._next()
        self._wait()

    def drop(self) -> None:
        """The step is given up: nothing is written any more."""
        self._flight = None
        self._wait()

    def _next(self) -> None:
        """End what is under way: another gradient is there, or none comes any more."""
        flight, self._flight = self._flight, None
        if flight is None:
            return
        if flight.added is None and self.tell is None:
            with flight.streams.on(COMPUTE, [flight.mark]):
                return  # from here on the device may use the gradient's memory again
        self._wait()
        if flight.added is not None:
            flight.place.add_(flight.added)
        if self.tell is not None:
            self.tell(flight.name)

    def _wait(self) -> None:
        if self._unwaited is not None:
            (streams, mark), self._unwaited = self._unwaited, None
            streams.finish(mark)
