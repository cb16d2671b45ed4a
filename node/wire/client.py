"""The wire of a node: the trainer's end of its I/O process (api.py defines the interface)."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any

import numpy as np

from ...proto import control_pb2 as control
from ...proto.data_pb2 import Header
from ...proto.errors import FarflungError, RunFailed
from ..device.identity import Identity
from ..device.memory import memory_at_most
from ..ipc.arena import Arena, LastAction, keep_freed_memory, make_file
from ..ipc.config import WireConfig
from ..ipc.pipe import From, To, TrainerEnd
from .api import Bytes, Payload
from .blocks import Blocks
from .calls import Calls
from .events import Event, Received
from .incoming import Incoming
from .outgoing import Outgoing, check_sendable
from .payloads import joined, pieces_of
from .spawn import IoHost

START_TIMEOUT = 30.0
CLOSE_TIMEOUT = 10.0


class ProcessWire:
    """The trainer's end of the I/O process: the `Wire` of a real run.

    Every call may raise RunFailed when the I/O process has ended: the trainer then ends too. Every call also shows that
    the trainer is alive; ``doing`` is its current action in words, for the coordinator's status.
    """

    def __init__(self, config: WireConfig, end: TrainerEnd, arenas: tuple[Arena, Arena], host: IoHost) -> None:
        self.config = config
        self.view = 0
        signs = config.authority and config.certificate and config.key
        self.identity = Identity(config.run, config.key, config.certificate, config.authority) if signs else None
        """The key and certificate with which this node proves its name to others; None: the run has no TLS."""
        self.members: frozenset[str] = frozenset()
        self._end, self._host = end, host
        self._blocks = Blocks(*arenas)
        self._last_action = LastAction(self._blocks.first_page)
        self._doing = "starting"
        self._outgoing = Outgoing(self._blocks, config.send_limit, self._wait, lambda: self._incoming.must_act())
        self._calls = Calls(end, self._wait)
        self._incoming = Incoming(end, self._blocks, freed=self._outgoing.freed, replied=self._calls.replied)
        self.while_waiting: Callable[[], None] | None = None
        """Called repeatedly while the trainer waits for data that may take long, so that it learns of its view's
        end."""
        self._closed = False

    @staticmethod
    def start(config: WireConfig, process: bool = True) -> ProcessWire:
        """Starts the I/O process (or, for tests, a task of the shared I/O thread) and waits until it listens.

        FarflungError when the address cannot be bound.
        """
        if process:
            keep_freed_memory()  # here too: received payloads are large and short-lived
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
        """Copies the payload (except memory from `place`) and returns. Messages to one peer keep their order within a
        priority (0 activations and gradients, 1 rounds, 2 state).

        Fills in the header's run, session and, if it is 0, view. A message of another view than the current one is
        dropped and counted. A message to this node itself goes straight to `poll`. ValueError: `to` is not a member.

        Waits only while config.send_limit bytes wait for the network, and receives messages meanwhile; an order or a
        lost peer ends that wait.
        """
        self._alive()
        check_sendable(header, priority)
        if header.view not in (0, self.view) or not self.view:
            self._incoming.dropped += 1
            return
        if to not in self.members:
            raise ValueError(f"{to} is not a member of view {self.view}")
        if not header.view:
            header.view = self.view
        pieces = pieces_of(payload)
        length = sum(map(len, pieces))
        if to == self.config.name:
            whole = Header()
            whole.CopyFrom(header)
            whole.run, whole.session = self.config.run, self.config.session
            self._incoming.events.append(Received(to, whole, joined(pieces, np.empty(length, np.uint8))))
            return
        handed = self._outgoing.hand_over(pieces, length)
        self._end.write(int(To.SEND), to, priority, header.SerializeToString(), handed)

    def place(self, blobs: Iterable[Sequence[Bytes]], count: int) -> memoryview:
        """Writes blobs (each a sequence of pieces) one after the other into shared memory, from which `send` sends them
        without a further copy, any number of times. The memory is free again when no view of it is left. ``count``: how
        many blobs there are. If none is much longer than the first, each blob is copied before the next one is made."""
        return self._outgoing.place(blobs, count)

    def poll(self, timeout: float = 0.0) -> list[Event]:
        """All events that have arrived, in order; waits up to `timeout` seconds for the first. A large payload lies in
        shared memory, which is free again when neither the array nor a view of it is left."""
        self._alive()
        deadline = time.monotonic() + timeout
        self._incoming.read(0.0)
        while not self._incoming.events and (left := deadline - time.monotonic()) > 0:
            self._incoming.read(left)
        self._alive()
        events = list(self._incoming.events)
        self._incoming.events.clear()
        return events

    def report(self, report: control.Report) -> None:
        """Send a report to the coordinator, now or when it is back. The I/O process fills in the bytes of a
        StepDone."""
        self._alive()
        self._end.write(int(To.REPORT), report.SerializeToString())

    # ---- views -----------------------------------------------------------------------------

    def enter(self, view: int, members: Sequence[control.Member], needed: Collection[str] | None = None) -> None:
        """From now on only messages of this view and its members (which include this node) are sent and received.

        ``needed``: the members with which this node exchanges something; None: all. Connections to these are opened and
        kept, and a broken one is reported. A connection to another member is opened with the first message to it."""
        self._alive()
        self._incoming.enter(view)
        self.view = view
        self.members = frozenset(member.name for member in members)
        self._end.write(
            int(To.ENTER),
            view,
            [member.SerializeToString() for member in members],
            None if needed is None else sorted(needed),
        )

    def leave_view(self) -> None:
        """The answer to Flush: all messages of the old view, queued or arrived, are dropped."""
        self._alive()
        self._incoming.leave()
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
        """Asks for bytes of an artifact (`length` None: to its end), without a time limit. Returns a function that
        waits for them and meanwhile calls ``while_waiting``. That function raises the errors of `describe` and those of
        ``while_waiting``; after the latter the bytes must be asked for again."""
        self._alive()
        return self._calls.later("fetch", name, offset, length, True, meanwhile=lambda: self.while_waiting)

    def store(self, step: int, file: str, payload: Bytes, files: int, meta: dict[str, Any]) -> None:
        """Streams one of the `files` files of a checkpoint to the coordinator, in the background and after all more
        urgent messages. If it cannot be stored, the coordinator and the log get a warning, and training goes on."""
        self._alive()
        start, length = self._outgoing.lay(pieces_of(payload))
        self._end.write(int(To.STORE), step, file, start, length, files, json.dumps(meta))

    def room(self, length: int) -> memoryview:
        """``length`` bytes of shared memory, which `send` and `store` use without a copy; free again when no view of it
        is left. Waits while there is no room."""
        self._alive()
        return self._outgoing.room(length).data

    def measure(self, peers: Sequence[control.Member]) -> control.Links:
        """Latency and bandwidth to each of ``peers`` (0 for one that cannot be reached). Waits about a second for each.

        The I/O process answers the coordinator's Measure orders by itself.
        """
        return control.Links.FromString(self._call("measure", [peer.SerializeToString() for peer in peers]))

    def statistics(self) -> dict[str, int]:
        """Bytes sent by category, and messages dropped by reason, since the start. Waits for the I/O process."""
        counts: dict[str, int] = json.loads(self._call("statistics"))
        return counts

    def uplink(self) -> float:
        """The highest bandwidth that a link of this node has reached, in bits per second, at most the owner's limit; 0:
        not measured and no limit. Waits."""
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
        """``count`` pieces of work are done: the coordinator waits for a node while this number grows or bytes
        arrive."""
        self._last_action.worked(count)

    @property
    def arrived(self) -> int:
        """Bytes that have arrived at this node, whole messages or not, as of half a second ago."""
        return self._last_action.arrived

    @property
    def under_way(self) -> bool:
        """Whether a sent message is not acknowledged yet, or a message has arrived in part."""
        return self._outgoing.pending > 0 or self._last_action.arriving > 0

    @property
    def dropped(self) -> int:
        """Messages of an older view that were already on the pipe, or sent outside the view."""
        return self._incoming.dropped

    @property
    def port(self) -> int:
        """The port that the node listens on."""
        assert isinstance(self._incoming.listening, int)
        return self._incoming.listening

    def close(self, why: str, drain: float = 1.0) -> bool:
        """Ends the I/O process: waits up to `drain` seconds for acknowledgements, then says goodbye with `why` (empty:
        says nothing). Waits. Returns whether the coordinator has taken the goodbye. May be called again, and after the
        I/O process has died."""
        if self._closed:
            return False
        self._closed = True
        heard = False
        try:
            with contextlib.suppress(RunFailed, OSError):  # it was gone already: only clean up
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
        while self._incoming.listening is None and time.monotonic() < deadline:
            self._incoming.read(deadline - time.monotonic())
        if self._incoming.listening is None:
            raise RunFailed(f"the I/O process did not start in {START_TIMEOUT:.0f} s", "is the machine overloaded?")
        if isinstance(self._incoming.listening, str):
            raise FarflungError(self._incoming.listening, "stop what listens there, or choose another port")

    def _alive(self) -> None:
        self._last_action.did(self._doing)

    def _call(self, method: str, *arguments: Any) -> bytes:
        self._alive()
        return self._calls.answer(self._calls.ask(method, *arguments))

    def _wait(self) -> None:
        """Wait up to a second for messages of the I/O process, and handle them."""
        self._incoming.read(1.0)
        self._alive()
