"""Whether a prepared view may train: which nodes have wrong weights, or can't read a checkpoint that others can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .. import signals as s
from ..faults.majority import Split, split
from ..faults.unreadable import apart, cannot_read, judged
from ..given import Given
from ..members import expected_bases, kept_apart, leaves, no_place, trains
from ..resuming.resume import planned_nodes
from ..state import DONE, TRAINING, Change, Result, State
from .beginning import go_back
from .verdict import Found, Out, PutOut

_DISAGREEMENTS = 2
"""Times in a row that a view may be abandoned because of a tie between different weights."""


def judge_readable(state: State, now: float) -> Found:
    """The consequences for nodes that can't read the checkpoint, after the coordinator has read it."""
    change, view = state.change, state.pinned
    assert change is not None and view is not None
    if change.sound is None or state.aside is not None:
        return state, []
    here, spoken = cannot_read(state), set(change.prepared)
    found = judged(view.plan, view.checkpoint, state.unreadable, here, spoken, now - change.sound)
    if found.aside:
        return replace(state, aside=view.checkpoint), [s.PutAside(view.checkpoint, found.aside)]
    if not found.wrong:
        return state, []
    return state, outvoted(state, found.wrong, "test its memory and its disk")


def judge_prepared(given: Given, state: State, now: float) -> Found:
    """Start the view if all members are prepared and hold the same weights."""
    change, view = state.change, state.pinned
    assert change is not None and view is not None
    if cannot_read(state) & set(view.plan.nodes):
        return judge_readable(state, now)
    if len(change.prepared) < len(change.awaited) or change.awaited - set(change.prepared):
        return state, []
    bases = bases_of(state, change, view)
    strangers = {}
    for name in sorted(change.awaited):
        held = change.prepared[name].bases
        other = sorted(layer for layer, content in held.items() if bases.get(layer, content) != content)
        if other:
            strangers[name] = other
    if strangers:
        return state, other_base(state, strangers)
    found = split({name: answer.fingerprints for name, answer in change.prepared.items()})
    if found.outvoted:
        return state, outvoted(state, found.outvoted)
    if found.tie:
        return disagreed(state, found, now)
    state = replace(
        state,
        phase=TRAINING,
        view=view,
        pinned=None,
        eligible=planned_nodes(view.plan, view)
        | {(one.node, state.nodes[one.node].session) for one in view.shadows if not one.fetch},
        wanted=state.wanted if any(node.behind for node in state.nodes.values()) else None,
        tuned=None,
        started=now,
        slowest_s=state.slowest_s or given.known.step_s(view.plan),
        bases=bases,
        change=None,
        begun=True,
        restored=False,
        reported={},
        seconds={},
        waits={},
        standstill=None,
        finished={},
        disagreements=0,
        unreadable={} if view.checkpoint >= 0 else state.unreadable,
        unplannable=frozenset(),
        why=f"view {view.number} trains: {view.why}",
    )
    effects: list[s.Effect] = [s.SendStart(tuple(sorted(change.awaited)), view.number, f"view {view.number} trains")]
    effects += [
        s.SendStop((node.name,), f"{node.name} is {no_place(state, node)}")
        for node in state.nodes.values()
        if node.name not in view.plan.nodes and leaves(state, node)
    ]
    return state, effects


def bases_of(state: State, change: Change, view: s.Announcement) -> dict[int, int]:
    """Layer -> the hash that its frozen weights must have. A node votes on the layers of its place."""
    trained: list[dict[int, int]] = []
    new: list[dict[int, int]] = []
    for name in state.nodes:  # in the order in which they joined
        if name in change.prepared and name in view.plan:
            own = view.plan.layers_of(name)
            bases = {layer: one for layer, one in change.prepared[name].bases.items() if layer in own}
            before = state.view is not None and trains(state, name, state.view)
            (trained if before else new).append(bases)
    return expected_bases(state.bases, trained, new)


def disagreed(state: State, found: Split, now: float) -> Result:
    """Equal camps of a group hold different weights: only the checkpoint's are trusted. The second time in a row the
    two camps are planned apart, so that no camp can stop the run."""
    clash, count = found.tie, state.disagreements + 1
    if count > _DISAGREEMENTS:
        everybody = tuple(sorted(state.nodes))
        why = f"{clash}, {count} times in a row"
        state = replace(state, phase=DONE, why=why)
        return state, [
            s.SendStop(everybody, why, failed=True),
            s.Fail(why, "this is a fault of farflung: report it"),
        ]
    if count == _DISAGREEMENTS:
        state = kept_apart(state, apart(found.camps))
        clash += " again: they are planned apart"
    state = replace(state, disagreements=count)
    view = state.pinned
    assert view is not None
    # If they have just loaded a checkpoint, the checkpoint is not the cause.
    return go_back(state, clash, view.position.step if view.checkpoint < 0 else 0, now)


def other_base(state: State, strangers: Mapping[str, list[int]]) -> PutOut:
    """Put out nodes whose frozen weights are not the run's: what they compute is useless. The others go on."""
    outs = []
    for name, layers in strangers.items():
        where = f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}"
        why = (
            f"its frozen weights of {where} are not those of the base {state.rules.base} that the run trains with; "
            "if that folder was changed meanwhile, put it back as it was; if not, test the node's memory"
        )
        outs.append(_out(name, why, f"{why}; then join again"))
    return PutOut(tuple(outs))


def outvoted(state: State, found: Mapping[str, str], advice: str = "test its memory") -> PutOut:
    """Put out nodes that hold, or can read, something else than most members of a section. The others go on."""
    whys = {name: f"{what}; {advice}, and join again when it is sound" for name, what in found.items()}
    return PutOut(tuple(_out(name, why, why) for name, why in whys.items() if name in state.nodes))


def _out(name: str, why: str, told: str) -> Out:
    """A node that is put out and refused. ``told``: the sentence that the node itself gets."""
    stop = s.SendStop((name,), f"{name} cannot train: {told}", refused=True)
    return Out(name, why, (stop, s.Say("warning", name, f"{name} is put out: {why}")))
