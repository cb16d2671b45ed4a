"""Phase ``waiting``, and the beginning of every view change: enough nodes, their links measured, then the flush."""

from __future__ import annotations

from dataclasses import replace

from ....proto.connections.patience import Watch
from .. import signals as s
from ..faults.restless import quiet
from ..faults.unreadable import distrust
from ..measuring import ALL, chosen
from ..members import all_finished, no_place, plannable, put
from ..state import FLUSHING, PREPARING, TRAINING, WAITING, Change, Node, Result, State

PEERS_IN_TIME = 4
"""Slow links that a node can measure within ``Rules.measure_s``, one after the other; with more links it gets more
time."""


def begin(state: State, why: str, now: float) -> Result:
    """Announce the next view's number; all nodes that could be in the view flush."""
    number = state.number + 1
    awaited = frozenset(plannable(state))
    if not awaited:
        state = replace(state, phase=WAITING, change=None, number=number, finished={}, diverged=None)
        state, effects = wait(state, now)
        return replace(state, why=f"{why}; {state.why}"), effects
    nodes = {}
    for name, node in state.nodes.items():
        behind = node.behind and node.caught_up is None
        node = replace(node, passed_over=False, returns=False, told_to_leave=None)
        nodes[name] = replace(node, behind=behind, caught_up=None)
    change = Change(number, why, now, awaited=awaited, watch=Watch("the flush", now, state.rules.flush_s))
    sentence = f"view {number} is being made: {why}"
    state = replace(state, phase=FLUSHING, number=number, nodes=nodes, change=change, why=sentence)
    state = replace(state, finished={}, ended=None, diverged=None, down={})
    to = tuple(sorted(name for name in awaited if nodes[name].attending))
    return state, [s.SendFlush(to, number, why)] if to else []


def wait(state: State, now: float) -> Result:
    """Begin or continue the run, when enough nodes are in and their links are measured."""
    rules = state.rules
    if state.paused:
        return replace(state, why=state.paused), []
    present = [node for node in state.nodes.values() if node.attending and not no_place(state, node)]
    without = "".join(f"; {node.name} is {why}" for node in state.nodes.values() if (why := no_place(state, node)))
    names = ", ".join(sorted(node.name for node in present)) or "nobody"
    wanted = 1 if state.begun else rules.wanted
    if len(present) < wanted:
        more = wanted - len(present)
        need = f"waiting for {more} more node{'s' if more > 1 else ''}"
        reason = f" ({rules.wanted_why})" if not state.begun else ""
        return replace(state, why=f"{need}{reason}; {names} in{without}"), []
    if frozenset(node.name for node in present) == state.unplannable:
        return state, []
    if not is_settled(state, now):
        return state, []
    state, effects = measure(state, present, now)
    if not all(state.nodes[node.name].measured for node in present):
        waiting = ", ".join(node.name for node in present if not state.nodes[node.name].measured)
        return replace(state, why=f"waiting for {waiting} to measure links"), effects
    if state.begun:
        why = f"{names} in: the run goes on"
    else:
        why = f"{len(present)} node{'s' if len(present) > 1 else ''} in: the run starts"
    state, more_effects = begin(state, why, now)
    return state, effects + more_effects


def is_settled(state: State, now: float) -> bool:
    """Whether the last join is long enough ago; after a restart, whether the old members had time to return."""
    if state.restored and state.view is not None and not state.number > state.view.number:
        back = {node.session for node in state.nodes.values() if node.attending}
        if {member.session for member in state.view.members} - back and state.begun:
            return quiet(state, state.rules.return_s, now)
    return quiet(state, state.rules.settle_s, now)


def measure(state: State, nodes: list[Node], now: float) -> Result:
    """Ask the nodes that were never asked to measure their links; those asked too long ago count as measured."""
    effects: list[s.Effect] = []
    asked: dict[str, list[s.Member]] = {}
    ordered = sorted(nodes, key=lambda node: node.name)
    most = min(len(state.nodes), ALL)
    old = [other.name for other in state.nodes.values() if other.measured]
    new = [node.name for node in ordered if not node.measured]
    for index, name in enumerate(new):
        node = state.nodes[name]
        if node.asked is None:
            # Each pair is measured once, by its first node; a joiner measures its links to the nodes already in; among
            # many nodes, to a few of them.
            peers = [*old, *new[index + 1 :]]
            asked[node.name] = [state.nodes[peer].member for peer in chosen(node.name, peers)]
        elif now - node.asked > (patience := state.rules.measure_s * max(1.0, most / PEERS_IN_TIME)):
            why = f"{node.name} did not measure its links within {patience:.0f} s; guesses are used"
            state = put(state, replace(node, measured=True))
            effects.append(s.Say("warning", node.name, why))
    for name in list(asked):
        for peer in list(asked[name]):
            if peer.dials_out:  # the peer has to open the connection, so the peer measures
                asked.setdefault(peer.name, []).append(state.nodes[name].member)
    told = {}
    for name, wanted in asked.items():
        node = state.nodes[name]
        told[name] = replace(node, asked=now, measured=node.measured or not wanted)
        if wanted:
            effects.append(s.SendMeasure(name, tuple(wanted), f"{name} measures {len(wanted)} links"))
    return (replace(state, nodes={**state.nodes, **told}) if told else state), effects


def begin_anew(state: State, why: str, now: float, effects: list[s.Effect] | None = None) -> Result:
    """Begin a view change for a change of the run, unless the next view is not announced yet and will take it up."""
    if state.phase == PREPARING or (state.phase == TRAINING and not all_finished(state)):
        state, more = begin(state, why, now)
        return state, [*(effects or ()), *more]
    return state, effects or []


def go_back(state: State, clash: str, step: int, now: float) -> Result:
    """Members disagree on the weights of ``step`` without a majority: all go back to an older checkpoint."""
    state, aside = distrust(state, step, clash)
    state = replace(state, eligible=frozenset())
    state, effects = begin(state, f"{clash}: back to the newest checkpoint", now)
    return state, [s.Say("warning", "", clash), *aside, *effects]
