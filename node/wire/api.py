"""The interface between a node's computation and the transport of its messages.

`ProcessWire` (client.py) implements it with the node's I/O process and gRPC, `farflung.testing.wires.LoopbackWire` with
queues in one process. A node's code uses this interface only, and the type checker compares both classes with it.

Two members of a view, and a message from one to the other:

>>> from farflung.proto.control_pb2 import Member
>>> from farflung.proto.data_pb2 import READY, Header, Ready
>>> from farflung.testing.wires import Network
>>> network = Network()
>>> a, b = network.wire("a"), network.wire("b")
>>> members = [Member(name="a"), Member(name="b")]
>>> a.enter(7, members)
>>> a.send("b", Header(kind=READY, ready=Ready(step=3)), [b"two ", b"pieces"], priority=0)

The message waits until the receiver is in that view too, and arrives whole:

>>> b.poll()
[]
>>> b.enter(7, members)
>>> (event,) = b.poll(1.0)
>>> event.sender, event.header.view, event.header.ready.step, event.payload.tobytes()
('a', 7, 3, b'two pieces')

Outside of a view no message is sent, and messages of the old view that have arrived are dropped:

>>> a.leave_view()
>>> a.send("b", Header(kind=READY, ready=Ready(step=4)))
>>> b.poll()
[]

A report goes to the coordinator:

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
"""Bytes to send; a sequence stands for the concatenation of its pieces."""
Blob = Sequence[bytes | bytearray | memoryview]
"""An encoding in pieces, which may be views of the encoded tensor: valid until that tensor changes."""


class Wire(Protocol):
    """A node's end of its connections to the coordinator and to the members of its view.

    Not thread safe. A call returns at once unless its docstring says that it waits. Every call may raise RunFailed if
    the I/O process is gone.
    """

    doing: str
    """What the trainer is doing, in words, for the coordinator's status."""
    while_waiting: Callable[[], None] | None
    """Called repeatedly while a call waits for data that may take long."""

    @property
    def identity(self) -> Identity | None:
        """The key and certificate with which this node proves its name to others; None: the run has no TLS."""

    @property
    def members(self) -> Collection[str]:
        """The members of the view that was entered; empty outside a view."""

    # ---- messages --------------------------------------------------------------------------

    def send(self, to: str, header: Header, payload: Payload = b"", priority: int = 1) -> None:
        """Send to a member of this view. Messages to one member keep their order within a priority (0 activations and
        gradients, 1 rounds, 2 state); lower numbers go first. Outside of a view the message is dropped."""

    def place(self, blobs: Iterable[Blob], count: int) -> Sequence[bytes] | memoryview:
        """Write blobs into memory from which `send` sends them without a further copy. ``blobs`` may be a generator:
        each blob is copied before the next one is made. ``count``: how many there are."""

    def poll(self, timeout: float = 0.0) -> list[Event]:
        """All events that have arrived, in order; waits up to ``timeout`` seconds for the first. Messages of a view
        that is not entered yet are kept for later; those of earlier views are dropped."""

    def report(self, report: control.Report) -> None:
        """Send a report to the coordinator, now or when it is back."""

    # ---- views -----------------------------------------------------------------------------

    def enter(self, view: int, members: Sequence[control.Member], needed: Collection[str] | None = None) -> None:
        """From now on only messages of this view and its members are sent and received. ``needed``: the members to keep
        connections to; None: all."""

    def leave_view(self) -> None:
        """Drop all messages of the view, queued or arrived."""

    # ---- the coordinator's files -----------------------------------------------------------

    def fetch(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of an artifact (``length`` None: to its end). Waits. FarflungError: there is none."""

    def fetch_later(self, name: str, offset: int, length: int | None) -> Callable[[], bytes]:
        """Ask for bytes of an artifact. Returns a function that waits for them and meanwhile calls ``while_waiting``,
        whose exceptions end the wait."""

    def room(self, length: int) -> memoryview:
        """``length`` bytes of memory from which `send` and `store` send without a copy. Waits for free memory."""

    def store(self, step: int, file: str, payload: Bytes, files: int, meta: dict[str, Any]) -> None:
        """Send the coordinator one of the ``files`` files of the checkpoint of a step, in the background."""

    # ---- what is known of the links --------------------------------------------------------

    def uplink(self) -> float:
        """The highest bandwidth that a link of this node has reached, bits per second; 0: not known. Waits."""

    @property
    def under_way(self) -> bool:
        """Whether a sent message is not acknowledged yet, or a message has arrived in part."""

    @property
    def arrived(self) -> int:
        """Bytes that have arrived at this node, including those of incomplete messages."""

    def worked(self, count: int = 1) -> None:
        """Count finished pieces of work: the coordinator waits for a node while this number grows."""
