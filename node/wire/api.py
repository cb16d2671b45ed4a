"""The seam between what a node computes and what carries its messages.

`ProcessWire` (client.py) fills it with the node's I/O process and gRPC, `farflung.testing.wires.LoopbackWire` with
queues of one process. A node's code knows this file alone, and the type checker holds both against it.

Two members of a view, and a message from one to the other:

>>> from farflung.proto.control_pb2 import Member
>>> from farflung.proto.data_pb2 import READY, Header, Ready
>>> from farflung.testing.wires import Network
>>> network = Network()
>>> a, b = network.wire("a"), network.wire("b")
>>> members = [Member(name="a"), Member(name="b")]
>>> a.enter(7, members)
>>> a.send("b", Header(kind=READY, ready=Ready(step=3)), [b"two ", b"pieces"], priority=0)

It waits until the receiver is in that view too, and comes whole:

>>> b.poll()
[]
>>> b.enter(7, members)
>>> (event,) = b.poll(1.0)
>>> event.sender, event.header.view, event.header.ready.step, event.payload.tobytes()
('a', 7, 3, b'two pieces')

Outside a view nothing is sent, and messages of the old view that have arrived are dropped:

>>> a.leave_view()
>>> a.send("b", Header(kind=READY, ready=Ready(step=4)))
>>> b.poll()
[]

What the coordinator hears:

>>> from farflung.proto.control_pb2 import Report, StepDone
>>> a.report(Report(step=StepDone(view=7, step=3)))
>>> name, report = network.reports.get()
>>> name, report.step.step
('a', 3)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

import numpy.typing as npt

from ...proto import control_pb2 as control
from ...proto.data_pb2 import Header
from ..device.identity import Identity
from .events import Event

Bytes = bytes | bytearray | memoryview | npt.NDArray[Any]
Payload = Bytes | Sequence[Bytes]
"""Bytes to send; of a sequence, the pieces one after the other."""
Blob = Sequence[bytes | bytearray | memoryview]
"""An encoding in pieces, which may be parts of what is encoded: good until that changes."""


class Wire(Protocol):
    """A node's end of its connections to the coordinator and to the members of its view.

    Not thread safe. Every call returns at once unless it says that it waits. Any of them may raise RunFailed: what
    carries the messages is gone.
    """

    doing: str
    """What the trainer is doing, in words, for the coordinator's status."""
    while_waiting: Callable[[], None] | None
    """Called repeatedly while a call waits for data that may take long."""

    @property
    def identity(self) -> Identity | None:
        """What this node proves itself with to the others; None: the run has no TLS."""

    @property
    def members(self) -> Collection[str]:
        """The members of the view that was entered; empty outside a view."""

    # ---- messages --------------------------------------------------------------------------

    def send(self, to: str, header: Header, payload: Payload = b"", priority: int = 1) -> None:
        """Send to a member of this view. Messages to one member keep their order within a priority (0 activations and
        gradients, 1 rounds, 2 state); the more urgent go first. Outside a view it is dropped."""

    def place(self, blobs: Iterable[Blob], count: int) -> Sequence[bytes] | memoryview:
        """Lay blobs where `send` finds them without a copy. Each is made when the one before lies there; ``count``:
        how many will follow."""

    def poll(self, timeout: float = 0.0) -> list[Event]:
        """Everything that has arrived, in order; waits up to ``timeout`` seconds for the first. Messages of a view that
        is not entered yet wait here; those of earlier ones are dropped."""

    def report(self, report: control.Report) -> None:
        """Tell the coordinator something, now or when it is back."""

    # ---- views -----------------------------------------------------------------------------

    def enter(self, view: int, members: Sequence[control.Member], needed: Collection[str] | None = None) -> None:
        """From here on only messages of this view and its members go out and come in. ``needed``: the members to keep
        connections to; None: all."""

    def leave_view(self) -> None:
        """Drop all messages of the view, queued or arrived."""

    # ---- the coordinator's files -----------------------------------------------------------

    def fetch(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of an artifact (``length`` None: to its end). Waits. FarflungError: there is none."""

    def fetch_later(self, name: str, offset: int, length: int | None) -> Callable[[], bytes]:
        """Ask for bytes of an artifact; what it returns waits for them and meanwhile calls ``while_waiting``, whose
        exceptions end the wait."""

    def room(self, length: int) -> memoryview:
        """Memory of this many bytes where `send` and `store` find them without a copy. Waits while there is none."""

    def store(self, step: int, file: str, payload: Bytes, files: int, meta: dict[str, Any]) -> None:
        """Give the coordinator one of the ``files`` files of the checkpoint of a step, in the background."""

    # ---- what is known of the links --------------------------------------------------------

    def uplink(self) -> float:
        """Bits a second that this node's links have reached; 0: not known. Waits."""

    @property
    def under_way(self) -> bool:
        """Whether something that was sent is not acknowledged yet, or a message has arrived in part."""

    @property
    def arrived(self) -> int:
        """Bytes that have arrived at this node, of whole messages or not."""

    def worked(self, count: int = 1) -> None:
        """Count finished pieces of work: the coordinator waits for a node while this number grows."""
