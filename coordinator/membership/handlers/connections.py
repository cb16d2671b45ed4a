"""Events about connections between nodes, and between a node and the coordinator."""

from __future__ import annotations

from dataclasses import replace

from .. import signals as s
from ..given import Given
from ..members import in_view, kept_apart, put
from ..phases.beginning import begin_anew
from ..phases.training import compare_histories
from ..state import TRAINING, Result, State
from .departures import remove


def stream_ended(given: Given, state: State, event: s.StreamEnded, now: float) -> Result:
    """A control stream ended: the node is dialled to find out whether it is alive."""
    node = state.nodes[event.name]
    state = put(state, replace(node, attending=False))
    why = f"the control stream of {node.name} ended: {event.why}"
    return state, [s.Dial(node.name, node.session, node.address, why)]


def complained(given: Given, state: State, event: s.Accused, now: float) -> Result:
    """A node reports that a connection to a peer is down, is up again, or that their histories differ."""
    if event.mended:
        return connection_mended(state, event), []
    return histories_differ(state, event, now) if event.diverged else lost_connection(state, event)


def lost_connection(state: State, event: s.Accused) -> Result:
    """A connection is down. The peer is dialled once, however many nodes report it."""
    peer = state.nodes.get(event.peer)
    if state.phase != TRAINING or peer is None or event.peer == event.name:
        return state, []
    asked = event.peer in state.accused
    said = {**state.accused.get(event.peer, {}), event.name: event.why}
    state = replace(state, accused={**state.accused, event.peer: said})
    why = f"{event.name} lost its connection to {event.peer}: {event.why}"
    return state, [] if asked else [s.Dial(peer.name, peer.session, peer.address, why)]


def connection_mended(state: State, event: s.Accused) -> State:
    """A connection is up again, which has no consequence."""
    down = {pair: found for pair, found in state.down.items() if pair != (event.name, event.peer)}
    others = {by: why for by, why in state.accused.get(event.peer, {}).items() if by != event.name}
    accused = {**state.accused, event.peer: others} if event.peer in state.accused else state.accused
    return replace(state, down=down, accused=accused)


def histories_differ(state: State, event: s.Accused, now: float) -> Result:
    """Two nodes report different histories; the flush will show which one is right."""
    if state.phase != TRAINING or state.view is None or state.diverged or event.peer == event.name:
        return state, []
    if not all(in_view(state, name, state.view) for name in (event.name, event.peer)):
        return state, []
    return compare_histories(replace(state, diverged=(event.name, event.peer)), now)


def dialled(given: Given, state: State, event: s.Dialled, now: float) -> Result:
    """A dialled node has answered, or not."""
    node = state.nodes[event.name]
    complaints = state.accused.get(node.name, {})
    state = replace(state, accused={name: who for name, who in state.accused.items() if name != node.name})
    if not event.reachable:
        if not node.attending:
            return remove(given, state, node, f"its stream ended and it does not answer: {event.why}", now)
        if node.doubted:
            silent = f"no heartbeat for {now - node.heard:.0f} s"
            return remove(given, state, node, f"{silent}, and it does not answer: {event.why}", now)
    if state.phase != TRAINING or state.view is None:
        return state, []
    # Both nodes answer, so the connection will probably be back in a moment, and then nothing is lost. A spare's broken
    # connection costs nothing at all: the spare asks again for what it lacks.
    training = set(state.view.plan.nodes)
    down = {(by, node.name): (now, why) for by, why in complaints.items() if {by, node.name} <= training}
    return replace(state, down={**down, **state.down}), []


def plan_apart(given: Given, state: State, event: s.Apart, now: float) -> Result:
    """Either of the two may be at fault: both stay, in places that exchange nothing with each other."""
    pair = (min(event.name, event.peer), max(event.name, event.peer))
    if pair in state.broken:
        return state, []
    state = kept_apart(state, {pair})
    return begin_anew(state, event.why, now, [s.Say("warning", event.name, event.why)])
