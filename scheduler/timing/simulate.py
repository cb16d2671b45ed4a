"""A discrete-event simulation of a step: the same action lists that nodes execute, on the links they would use.

Two ways of sending are simulated. OVERLAPPED is this project's: a send never blocks compute, and messages wait in
the sender's queue for the link. A coupled transport is that of DT-FM's runtime on one NCCL communicator: receives and
sends of a device take turns, and a send ends when the rest of the message fits into the buffers, so the device is
blocked during a part of every transfer. It exists to check the simulator against that paper's measurements.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy

from ..errors import PlanError
from ..networks.devices import Matrix
from ..networks.network import Network
from ..workloads.schedules import Action, Order, actions
from .transport import OVERLAPPED, Flow, Resources, Span, Trace, Transport


def simulate(
    network: Network,
    pipelines: Sequence[Sequence[int]],
    forward: Matrix,
    backward: Matrix,
    ahead_bits: Sequence[Sequence[float]],
    astern_bits: Sequence[Sequence[float]],
    microbatches: Sequence[int],
    schedule: str,
    transport: Transport = OVERLAPPED,
    record: bool = False,
    in_flight: Sequence[Sequence[int]] = (),
) -> Trace:
    """Runs one step's forwards and backwards.

    pipelines: device indices in stage order (repeating with period stages / chunks if interleaved).
    forward, backward: float64 [d, p] seconds of one microbatch at each stage. ahead_bits, astern_bits: [d][p - 1] bits
    of one microbatch's activation, and of its gradient, at each boundary of each pipeline. in_flight: [d][p] as in a
    plan; empty: the schedule's own numbers.
    """
    run = _Run(network, transport, record)
    for index, row in enumerate(pipelines):
        held = in_flight[index] if in_flight else ()
        run.add_pipeline(index, row, forward[index], backward[index], microbatches[index], schedule, held)
    run.bits = (ahead_bits, astern_bits)
    return run.until_done()


def positions(row: Sequence[int]) -> int:
    """Number of nodes of a pipeline: the period with which its devices repeat. PlanError if they don't."""
    count = len(set(row))
    if any(row[stage] != row[stage % count] for stage in range(len(row))):
        raise PlanError("an interleaved pipeline must visit its nodes in the same order each time")
    return count


@dataclass
class _Node:
    """A device's progress in its list of actions, and the next turn of its transport (coupled)."""

    device: int
    pipeline: int
    position: int
    nodes: int
    last: int
    order: Order
    forward: Matrix
    backward: Matrix
    doing: Action | None = None
    ready: set[tuple[str, int, int]] = field(default_factory=set)
    turns: list[tuple[str, str, int, int]] = field(default_factory=list)
    turn: int = 0
    turn_started: float = -1.0
    pushed: int = 0
    computed: set[tuple[str, int, int]] = field(default_factory=set)


class _Run:
    def __init__(self, network: Network, transport: Transport, record: bool) -> None:
        self.network = network
        self.transport = transport
        self.record = record
        self.resources = Resources(network)
        self.nodes: list[_Node] = []
        self.at: dict[tuple[int, int], _Node] = {}
        self.links: dict[tuple[int, int], Flow] = {}
        self.events: list[tuple[float, int, str, object]] = []
        self.count = 0
        self.now = 0.0
        self.spans: list[Span] = []
        self.busy = numpy.zeros(len(network))
        self.done = numpy.zeros(len(network))
        self.bits: tuple[Sequence[Sequence[float]], Sequence[Sequence[float]]] = ([], [])

    def add_pipeline(
        self,
        index: int,
        row: Sequence[int],
        forward: Matrix,
        backward: Matrix,
        microbatches: int,
        schedule: str,
        held: Sequence[int],
    ) -> None:
        nodes = positions(row)
        chunks = len(row) // nodes
        kind = schedule if chunks > 1 or schedule != "interleaved" else "1f1b"
        for position in range(nodes):
            order = Order(kind, position, nodes, microbatches, chunks, held[position] if held else 0)
            node = _Node(row[position], index, position, nodes, len(row) - 1, order, forward, backward)
            if self.transport.coupled:
                node.turns = list(_turns(node, actions(kind, position, nodes, microbatches, chunks)))
            self.nodes.append(node)
            for stage in range(position, len(row), nodes):
                self.at[index, stage] = node

    def schedule(self, time: float, kind: str, what: object) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, kind, what))

    def until_done(self) -> Trace:
        for node in self.nodes:
            self.advance(node)
        while self.events:
            self.now, _, kind, what = heapq.heappop(self.events)
            if kind == "computed":
                self.on_computed(what)  # type: ignore[arg-type]
            elif kind == "left":
                self.on_left(what)  # type: ignore[arg-type]
            else:
                self.on_arrived(*what)  # type: ignore[misc]
        stuck = [node for node in self.nodes if node.order.left]
        if stuck:
            name, action = self.network.names[stuck[0].device], stuck[0].order.next(lambda _: True)
            raise PlanError(f"{name} waits for ever at {action}: no link carries what it needs")
        shared = dict(zip(self.resources.names, self.resources.busy, strict=True))
        carried = {pair: link.busy for pair, link in self.links.items()}
        return Trace(float(self.done.max()), self.done, self.busy, carried, shared, self.spans)

    def advance(self, node: _Node) -> None:
        """Starts the node's next action if its input has arrived, and performs the next turns of its coupled
        transport."""
        if self.transport.coupled:
            self.take_turns(node)
        if node.doing is not None:
            return
        action = node.doing = node.order.next(lambda action: self.has_input(node, action))
        if action is None:
            return
        stage = action.chunk * node.nodes + node.position
        seconds = float((node.forward if action.kind == "F" else node.backward)[stage])
        self.busy[node.device] += seconds
        if self.record:
            self.spans.append(Span(node.device, action.kind, str(action), self.now, self.now + seconds))
        self.schedule(self.now + seconds, "computed", node)

    def has_input(self, node: _Node, action: Action) -> bool:
        stage = action.chunk * node.nodes + node.position
        if action.kind == "F":
            return stage == 0 or ("F", stage, action.microbatch) in node.ready
        return stage == node.last or ("B", stage, action.microbatch) in node.ready

    def on_computed(self, node: _Node) -> None:
        action, node.doing = node.doing, None
        assert action is not None
        stage = action.chunk * node.nodes + node.position
        self.done[node.device] = self.now
        target = stage + 1 if action.kind == "F" else stage - 1
        if 0 <= target <= node.last:
            other = self.at[node.pipeline, target]
            if other is node:
                node.ready.add((action.kind, target, action.microbatch))
            elif self.transport.coupled:
                node.computed.add((action.kind, stage, action.microbatch))
            else:
                self.send(node, other, action.kind, stage, target, action.microbatch)
        self.advance(node)

    def link(self, sender: int, receiver: int, bits: float) -> Flow:
        if (sender, receiver) not in self.links:
            rates = self.resources.of_link(sender, receiver)
            latency = float(self.network.latency[sender, receiver])
            link = Flow(sender, receiver, latency, rates)
            if self.transport.coupled:
                slowest = max(per_bit for _, per_bit in rates) * bits / self.transport.pieces
                flying = round(latency / slowest) if slowest > 0 else 0
                link.window = self.transport.receive_buffer + flying
            self.links[sender, receiver] = link
        return self.links[sender, receiver]

    def send(self, node: _Node, other: _Node, kind: str, stage: int, target: int, microbatch: int) -> None:
        bits = self.bits[0][node.pipeline][stage] if kind == "F" else self.bits[1][node.pipeline][target]
        link = self.link(node.device, other.device, bits)
        pieces = self.transport.pieces
        key = (node.pipeline, target, microbatch, 0 if kind == "F" else 1)
        for piece in range(pieces):
            link.queued.append((bits / pieces, key, piece == pieces - 1))
        self.transmit(link)

    def transmit(self, link: Flow) -> None:
        """Puts the next piece on the link, if it is free and the receiver has room."""
        if link.sending or link.next >= len(link.queued) or link.next - link.consumed >= link.window:
            return
        bits, _, _ = link.queued[link.next]
        end = self.now
        resources = self.resources
        for server, per_bit in link.rates:
            start = max(self.now, resources.free[server])
            resources.free[server] = start + bits * per_bit
            resources.busy[server] += bits * per_bit
            end = max(end, resources.free[server])
        if end == float("inf"):
            return
        link.busy += end - self.now
        link.sending = True
        if self.record and not self.transport.coupled:
            key = link.queued[link.next][1]
            label = f"{'FB'[key[3]]}{key[2]}"
            self.spans.append(Span(link.sender, "send", label, self.now, end, link.receiver))
        self.schedule(end, "left", link)
        self.schedule(end + link.latency, "arrived", (link, link.next))
        link.next += 1

    def on_left(self, link: Flow) -> None:
        link.sending = False
        link.left += 1
        self.transmit(link)
        if self.transport.coupled:
            sender = self.at_device(link.sender)
            self.advance(sender)

    def at_device(self, device: int) -> _Node:
        if not hasattr(self, "_by_device"):
            self._by_device = {node.device: node for node in self.nodes}
        return self._by_device[device]

    def on_arrived(self, link: Flow, index: int) -> None:
        _, key, last = link.queued[index]
        pipeline, target, microbatch, backward = key
        node = self.at[pipeline, target]
        if self.transport.coupled:
            link.arrived[key] = link.arrived.get(key, 0) + 1
        elif last:
            link.consumed = index + 1
            node.ready.add(("FB"[backward], target, microbatch))
        self.advance(node)

    # --- coupled transport: receives and sends in program order, one at a time ---

    def take_turns(self, node: _Node) -> None:
        while node.turn < len(node.turns):
            what, kind, stage, microbatch = node.turns[node.turn]
            finished = (
                self.receive_turn(node, kind, stage, microbatch)
                if what == "R"
                else self.send_turn(node, kind, stage, microbatch)
            )
            if not finished:
                return
            if self.record and what == "S":
                self.spans.append(Span(node.device, "send", f"{kind}{microbatch}", node.turn_started, self.now))
            node.turn += 1
            node.pushed = 0
            node.turn_started = -1.0

    def receive_turn(self, node: _Node, kind: str, stage: int, microbatch: int) -> bool:
        source = self.at[node.pipeline, stage - 1 if kind == "F" else stage + 1].device
        link = self.links.get((source, node.device))
        if link is None:
            return False
        key = (node.pipeline, stage, microbatch, 0 if kind == "F" else 1)
        there = link.arrived.get(key, 0)
        if there > node.pushed:
            link.consumed += there - node.pushed
            node.pushed = there
            self.transmit(link)
        if there < self.transport.pieces:
            return False
        node.ready.add((kind, stage, microbatch))
        return True

    def send_turn(self, node: _Node, kind: str, stage: int, microbatch: int) -> bool:
        if (kind, stage, microbatch) not in node.computed:
            return False
        if node.turn_started < 0:
            node.turn_started = self.now
        target = stage + 1 if kind == "F" else stage - 1
        other = self.at[node.pipeline, target].device
        bits = self.bits[0][node.pipeline][stage] if kind == "F" else self.bits[1][node.pipeline][target]
        link = self.link(node.device, other, bits)
        pieces = self.transport.pieces
        key = (node.pipeline, target, microbatch, 0 if kind == "F" else 1)
        while node.pushed < pieces and len(link.queued) - link.left < self.transport.send_buffer:
            link.queued.append((bits / pieces, key, node.pushed == pieces - 1))
            node.pushed += 1
            self.transmit(link)
        return node.pushed == pieces


def _turns(node: _Node, order: Sequence[Action]) -> list[tuple[str, str, int, int]]:
    """The order in which a device's receives and sends go to its communicator: the order of its actions."""
    turns = []
    for action in order:
        stage = action.chunk * node.nodes + node.position
        if action.kind == "F":
            receives, sends = stage > 0, stage < node.last
        else:
            receives, sends = stage < node.last, stage > 0
        if receives:
            turns.append(("R", action.kind, stage, action.microbatch))
        if sends:
            turns.append(("S", action.kind, stage, action.microbatch))
    return turns
