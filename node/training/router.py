"""Dispatches what arrives at a node: orders of the coordinator, messages of peers, broken connections.

An order that interrupts the present work is raised (endings.py). A message that is not valid is refused, with its
sender's name; it must not end this node.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ... import compress
from ...proto import control_pb2, data_pb2
from ...proto.messages import bodies
from ..rounds.protocol.payloads import Refused
from ..state.transfers.traffic import STATE_KINDS
from ..wire.events import CoordinatorBack, CoordinatorLost, Event, OrderEvent, PeerLost, Received
from .endings import Stopped, ViewEnds
from .following.standby import Answer
from .holdings import Holdings
from .parting import Parting
from .steps.view_training import ViewTraining

LOADED_AT_ONCE = 16 << 20
"""Bytes that are fetched at once; between two fetches, waiting peers are told that parameters are being loaded."""


class Router:
    """The router of one node. The one thread that owns the device calls ``pump`` between actions and while waiting."""

    def __init__(self, holdings: Holdings, parting: Parting) -> None:
        self._holdings, self._parting = holdings, parting
        self._events: deque[Event] = deque()
        self._orders: deque[control_pb2.Order] = deque()
        """Orders for views and their starts, until the trainer takes them."""

    # ---- arrivals --------------------------------------------------------------------------

    def pump(self, timeout: float = 0.0) -> None:
        """Handle all events that have arrived; wait up to ``timeout`` seconds for the first."""
        holdings = self._holdings
        if holdings.resources.island is not None:
            holdings.resources.island.check()
        if holdings.training is not None and holdings.training.has_text_to_compute:
            timeout = 0.0
        self._poll(timeout)
        while self._events:
            self._handle(self._events.popleft())  # removed first: handling it may raise, and later events must stay
        self._parting.work()
        holdings.traffic.server.tick(time.monotonic())
        holdings.resources.tracing.tick()
        if holdings.training is not None:
            holdings.resources.waiting.tick(holdings.view)
            holdings.training.tick()
        elif holdings.previous is not None:
            holdings.previous.view.log.tick()

    def _poll(self, timeout: float) -> None:
        if self._events:
            return
        wire = self._holdings.context.wire
        under_way, asked = wire.under_way, time.perf_counter()
        self._events.extend(wire.poll(timeout))
        if timeout:
            self._holdings.context.clock.idle(time.perf_counter() - asked, under_way or wire.under_way)

    def _handle(self, event: Event) -> None:
        if isinstance(event, OrderEvent):
            self._order(event.order)
        elif isinstance(event, Received):
            self.receive(event.sender, event.header, event.payload)
        elif isinstance(event, PeerLost):
            self._holdings.traffic.lose(event.peer)
        elif isinstance(event, CoordinatorLost | CoordinatorBack):
            self._parting.coordinator(lost=isinstance(event, CoordinatorLost))
        else:
            raise TypeError(event)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of the coordinator's artifacts, as `Wire.fetch`; events that arrive meanwhile are handled."""
        wire = self._holdings.context.wire
        if length is None:
            return wire.fetch_later(name, offset, None)()
        found = bytearray()
        while len(found) < length:
            data = wire.fetch_later(name, offset + len(found), min(LOADED_AT_ONCE, length - len(found)))()
            if not data:
                break
            found += data
        return bytes(found)

    def wait_for_the_coordinator(self) -> None:
        """Called repeatedly while this node waits for an artifact: handles events, and reports the wait if it
        trains."""
        training = self._holdings.training
        if training is not None and training.started:
            self._holdings.resources.waiting.on_the_coordinator(self._holdings.view)
        self.pump(0.2)

    # ---- orders ----------------------------------------------------------------------------

    def take_order(self, wanted: Callable[[control_pb2.Order], bool]) -> control_pb2.Order | None:
        """The first view or start that is ``wanted``, if it has arrived."""
        for order in self._orders:
            if wanted(order):
                self._orders.remove(order)
                return order
        return None

    def forget_orders(self) -> list[control_pb2.Order]:
        """The view ends: drop the orders that the trainer has not taken. Returns them."""
        forgotten = list(self._orders)
        self._orders.clear()
        return forgotten

    def _order(self, order: control_pb2.Order) -> None:
        holdings, kind = self._holdings, order.WhichOneof("kind")
        training, resources = holdings.training, holdings.resources
        if kind == "stop":
            raise Stopped(order.stop)
        if kind == "flush":
            if order.flush.view > holdings.view:
                raise ViewEnds(order.flush)
        elif kind in ("view", "start"):
            self._orders.append(order)
        elif kind == "trace":
            resources.tracing.wanted(order.trace)
        elif kind == "complete":
            if resources.rests is not None:
                resources.rests.complete = (order.complete.view, order.complete.step)
        elif kind == "write":
            if training is not None and order.write.view == holdings.view:
                training.write(order.write)
        elif kind == "judge":
            judge = training.view.judge if training is not None else None
            if judge is not None and order.judge.view == holdings.view:
                judge.look(order.judge.node, order.judge.rounds)
        elif kind == "leave":
            self._parting.leave(order.leave)
        elif kind == "notice":
            self._notice(order.notice)

    def _notice(self, notice: control_pb2.Notice) -> None:
        context = self._holdings.context
        if not notice.HasField("advice"):
            context.tell(notice.message)
            return
        advice = notice.advice
        told = {"doing": advice.doing, "use": advice.use, "better": advice.better}
        context.emit({"event": "advice", "time": time.time(), "node": context.name, **told})

    # ---- messages --------------------------------------------------------------------------

    def receive(self, sender: str, header: data_pb2.Header, payload: npt.NDArray[np.uint8]) -> None:
        """Pass a message on; refuse it, as its sender's fault, if it is not valid."""
        try:
            self._route(sender, header, payload)
        except (Refused, compress.CodecError, ValueError) as problem:
            what = bodies.kind_name(header.kind)
            self._holdings.context.refuse(sender, f"a {what} that makes no sense: {problem}")

    def _route(self, sender: str, header: data_pb2.Header, payload: npt.NDArray[np.uint8]) -> None:
        holdings, kind = self._holdings, header.kind
        if header.view != holdings.view:
            return  # of a view that this node has left
        answer, body = answer_of(header), bodies.of_round(header)
        if answer is not None:
            if holdings.follower is not None:
                holdings.follower.handle(sender, answer, payload)
        elif body is not None:
            training = self._whose_round(body.round)
            if training is not None and body.section in training.view.links:
                training.view.links[body.section].handle(sender, body, payload)
        elif kind == data_pb2.ROUND_REQUEST:
            wanted = header.round_request
            training = self._whose_round(wanted.round)
            if training is not None:
                training.view.log.request(sender, wanted.round, wanted.request)
        elif kind in STATE_KINDS:
            holdings.traffic.handle(sender, header, payload)
        elif holdings.training is not None:  # else it had arrived when the view ended
            holdings.training.handle(sender, header, payload)

    def _whose_round(self, round: int) -> ViewTraining | None:
        """The training to which a round belongs; rounds of the view before may be finished while the next is
        prepared."""
        training = self._holdings.training
        old = training is None or round <= training.view.base_round
        return self._holdings.previous if old else training


def answer_of(header: data_pb2.Header) -> Answer | None:
    """The message's body if it answers a spare's request for a round, else None."""
    if header.kind == data_pb2.ROUND_END:
        return header.round_end
    body = bodies.of_round(header)
    return body if isinstance(body, data_pb2.Result | data_pb2.Contribution) and body.request else None
