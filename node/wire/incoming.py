"""Messages of the I/O process to the trainer: read from the pipe, and kept until the trainer polls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ...proto import control_pb2 as control
from ...proto.data_pb2 import Header
from ..ipc.pipe import From, To, TrainerEnd
from .blocks import Blocks
from .calls import Reply
from .events import CoordinatorBack, CoordinatorLost, Event, OrderEvent, PeerLost, Received


class Incoming:
    """The events that have arrived, of the view that the trainer is in."""

    def __init__(
        self,
        end: TrainerEnd,
        blocks: Blocks,
        *,
        freed: Callable[[int, int], None],
        replied: Callable[[int, Reply], None],
    ) -> None:
        """``freed(start, length)``: a payload has been sent (see `Outgoing.freed`). ``replied(number, reply)``: a call
        is answered."""
        self.events: deque[Event] = deque()
        self.dropped = 0
        """Messages of an older view that were already on the pipe, or sent outside the view."""
        self.listening: int | str | None = None
        """The port of the I/O process, or the reason why it does not listen; None: not known yet."""
        self._view = 0
        self._end, self._blocks, self._freed, self._replied = end, blocks, freed, replied

    def read(self, timeout: float) -> None:
        """Reads all messages from the pipe, and tells the I/O process how many bytes were taken."""
        self._tell_taken(0)
        taken = 0
        for message in self._end.read(timeout):
            kind, *values = message
            if kind == From.RECEIVED:
                sender, header, payload = values
                array = self._taken(payload)
                taken += array.nbytes
                parsed = Header.FromString(header)
                if parsed.view == self._view:
                    self.events.append(Received(sender, parsed, array))
                else:
                    self.dropped += 1
            elif kind == From.REPLY:
                number, problem, hint, status, payload = values
                array = self._taken(payload)
                taken += array.nbytes
                self._replied(number, Reply(problem, hint, status, array))
            elif kind == From.FREED:
                start, length = values
                self._freed(start, length)
            elif kind == From.ORDER:
                self.events.append(OrderEvent(control.Order.FromString(values[0])))
            elif kind == From.PEER_LOST:
                self.events.append(PeerLost(*values))
            elif kind == From.COORDINATOR_LOST:
                self.events.append(CoordinatorLost(*values))
            elif kind == From.COORDINATOR_BACK:
                self.events.append(CoordinatorBack(*values))
            elif kind in (From.LISTENING, From.FAILED):
                self.listening = values[0]
        self._tell_taken(taken)

    def _taken(self, payload: bytes | tuple[int, int]) -> npt.NDArray[np.uint8]:
        if isinstance(payload, tuple):
            return self._blocks.received(*payload)
        return np.frombuffer(payload, np.uint8).copy()

    def _tell_taken(self, count: int) -> None:
        """Tell the I/O process that it may receive ``count`` bytes more, and which blocks are free again."""
        free = self._blocks.read_up()
        if count or free:
            self._end.write(int(To.TAKEN), count, free)

    def must_act(self) -> bool:
        """Whether an order or a lost peer is among the events."""
        return any(isinstance(event, OrderEvent | PeerLost) for event in self.events)

    def enter(self, view: int) -> None:
        """From now on only messages of ``view`` count. Of the events that are here, messages of other views and lost
        connections are dropped."""
        self._view = view
        kept = [event for event in self.events if not isinstance(event, Received) or event.header.view == view]
        kept = [event for event in kept if not isinstance(event, PeerLost)]
        self.dropped += sum(isinstance(event, Received) for event in self.events)
        self.dropped -= sum(isinstance(event, Received) for event in kept)
        self.events = deque(kept)

    def leave(self) -> None:
        """Drop all messages that are here."""
        self.enter(-1)
        self._view = 0
