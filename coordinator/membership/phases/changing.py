"""Phases ``flushing`` and ``preparing``: the decisions while nodes are awaited."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from .. import signals as s
from ..faults.overdue import overdue
from ..faults.waits import MOVING
from ..given import Given
from ..state import FLUSHING, PREPARING, State
from .awaited import least_wait, may_wait
from .beginning import begin
from .catching_up import let_catch_up, slow_joiners, stay_spare
from .fitness import judge_readable
from .planning import cannot_train_without
from .verdict import Found, Out, PutOut, SetAside

SAY_AGAIN_S = 10.0
"""Seconds until a flush is sent again to nodes that have not answered: the order may have been lost."""


def look_at_change(given: Given, state: State, now: float) -> Found:
    """Decisions that follow from time alone while nodes flush or prepare."""
    change = state.change
    assert change is not None
    late = change.awaited - set(change.flushed if state.phase == FLUSHING else change.prepared)
    if state.phase == PREPARING and change.sound is not None:
        state, found = judge_readable(state, now)
        if found:
            return state, found
    watch = change.watch.at(sum(state.nodes[name].moved for name in late), now)
    if watch is not change.watch:
        state = replace(state, change=replace(change, watch=watch))
    if state.phase == FLUSHING and now - max(change.said, change.began) > SAY_AGAIN_S:
        again = (name for name in late if state.nodes[name].attending)
        assert state.change is not None
        state = replace(state, change=replace(state.change, said=now))
        return state, [s.SendFlush(tuple(sorted(again)), change.number, change.why)]
    if state.phase == PREPARING and (slow := slow_joiners(given, state, now)):
        assert state.pinned is not None
        why, effects = f"{', '.join(slow)} takes long to fetch its part", list[s.Effect]()
        if not any(state.nodes[name].cannot_follow for name in slow):
            state = let_catch_up(given, state, slow, state.pinned.plan)
        elif cannot_train_without(given, state, set(slow)):
            assert state.change is not None
            return replace(state, change=replace(state.change, needs_all=True)), []
        else:
            state, effects = stay_spare(state, slow, f"all waited for {now - change.began:.0f} s")
        state, more = begin(state, why, now)
        return state, effects + more
    if held := overdue(state, late, least_wait, given.known.slowest_bps, now):
        return overdue_of(given, state, *held)
    if watch.gives_up(now) and not may_wait(given, state, late, now - watch.since):
        stood = f"nothing has moved for {now - watch.since:.0f} s"
        what = "no answer to the flush" if state.phase == FLUSHING else "not prepared"
        return state, expelled(state, late, f"{what}, and {stood}")
    return state, []


def overdue_of(given: Given, state: State, name: str, longest: float) -> Found:
    """A node reports progress, but has had more time than its task can take (overdue.py)."""
    assert state.change is not None
    what = "did not answer the flush" if state.phase == FLUSHING else f"did not prepare view {state.number}"
    why = f"{name} {what} within {longest:.0f} s, which is {MOVING} times what it takes, and reports progress"
    if cannot_train_without(given, state, {name}):
        state = replace(state, change=replace(state.change, needs_all=True))
        return state, [s.Say("warning", name, f"{why}: nobody can train without it, so all wait")]
    return state, SetAside(name, why)


def expelled(state: State, names: Collection[str], why: str) -> PutOut:
    """The awaited nodes have shown no progress for longer than anything may take."""
    present = [name for name in sorted(names) if name in state.nodes]
    stop = f"{why}; join again"
    return PutOut(tuple(Out(name, why, (s.SendStop((name,), stop, failed=True, again=True),)) for name in present))
