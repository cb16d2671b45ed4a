"""Where the next view takes up: a pure function of what the survivors of the last one hold.

``gradient`` mode: steps are atomic, so the highest step that any survivor finished is finished by all (those who
only held its results, "ready", apply it with the norm that the view carries), and anything above is dropped.
``delta`` mode: every pipeline finishes steps by itself; the view goes on after the highest, and the positions of
the stream that some pipeline took in steps that it did not finish are trained again first.
Either way a section stands at the highest round that a survivor applied. If a layer has no holder left, everybody
goes back to the newest complete checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ..proto.sampling import Position, unfinished
from ..scheduler.plans import Plan
from .signals import Announcement, Flushed, Section


@dataclass(frozen=True)
class Rules:
    """The constants of a run's membership. Times in seconds.

    ``wanted`` nodes are needed for the first view, ``wanted_why`` says where the number comes from. ``samples`` are the
    training samples, ``layers`` the model's layers. A node without heartbeat for ``doubt_s`` is dialled and out if it
    does not answer; one that answers (an overloaded machine does) is out after ``silence_s``. From its join to its
    first hello a node has ``arrive_s``.
    """

    mode: str
    batch: int
    microbatch: int
    seed: int
    samples: int
    layers: int
    wanted: int = 1
    wanted_why: str = "one node"
    settle_s: float = 1.0
    measure_s: float = 15.0
    arrive_s: float = 120.0
    flush_s: float = 120.0
    prepare_s: float = 600.0
    last_checkpoint_s: float = 120.0
    doubt_s: float = 3.0
    silence_s: float = 15.0
    return_s: float = 5.0


@dataclass(frozen=True)
class Resume:
    """The decision. ``checkpoint`` >= 0: everybody loads that; ``dissent``: nodes whose chain hash was outvoted."""

    position: Position
    sections: tuple[Section, ...] = ()
    holders: tuple[tuple[str, ...], ...] = ()
    checkpoint: int = -1
    norm: float = 0.0
    dissent: tuple[str, ...] = ()
    why: str = ""


def resume(
    rules: Rules,
    base: Announcement | None,
    pinned: Announcement | None,
    eligible: frozenset[tuple[str, str]],
    flushed: Mapping[str, Flushed],
    reported: Mapping[str, int],
    newest: Position,
) -> Resume:
    """Decide where to go on.

    base: the view that trained last. pinned: one announced since that never started: its position stands, because
    nodes may have taken it over. eligible: (name, session) that may hold current state. flushed: the survivors'
    answers. reported: the last finished step that the coordinator heard of from each node, dead ones too.
    newest: the newest complete checkpoint's position, step 0 for the initial weights.
    """
    back = _go_back(newest, "")
    if base is None or (pinned is not None and pinned.checkpoint >= 0):
        return back
    known = {name: answer for name, answer in flushed.items() if (name, answer.session) in eligible}
    if not known:
        return _go_back(newest, "no node of the last view is left")
    if pinned is not None:
        position, norm = pinned.position, pinned.norm
    elif rules.mode == "gradient":
        step = max(base.position.step, *(answer.step for answer in known.values()))
        position = base.position.after(step, rules.batch)
        norm = next((answer.norm for answer in known.values() if answer.step == step), 0.0)
    else:
        position, norm = _after_delta(rules, base, known, reported), 0.0
    sections, dissent = _sections(known, judge=pinned is None)
    current = {
        name
        for name, answer in known.items()
        if name not in dissent and _stands(answer, sections, position.step, rules.mode)
    }
    holders = tuple(
        tuple(sorted(name for name in current if layer in known[name].layers)) for layer in range(rules.layers)
    )
    missing = [layer for layer, names in enumerate(holders) if not names]
    if missing:
        return _go_back(newest, f"nobody holds {_ranges(missing)} any more")
    why = f"training goes on after step {position.step}"
    if position.redo:
        why += f", {len(position.redo)} samples are trained again"
    return Resume(position, tuple(sections.values()), holders, -1, norm, tuple(sorted(dissent)), why)


def _go_back(newest: Position, why: str) -> Resume:
    where = f"from the checkpoint of step {newest.step}" if newest.step else "from the initial weights"
    return Resume(newest, checkpoint=newest.step, why=f"{why}: {where}" if why else where)


def _after_delta(
    rules: Rules, base: Announcement, known: Mapping[str, Flushed], reported: Mapping[str, int]
) -> Position:
    """A pipeline has finished what its last stage has reported, for that report is where samples are counted."""
    plan, first = base.plan, base.position.step
    finished = [
        max(first, known[last].step if last in known else reported.get(last, first))
        for last in (pipeline[-1] for pipeline in plan.pipelines)
    ]
    step = max(finished)
    again = unfinished(base.position, finished, step, plan.microbatches, rules.microbatch, rules.seed, rules.samples)
    return base.position.after(step, rules.batch, again)


def _sections(known: Mapping[str, Flushed], judge: bool) -> tuple[dict[str, Section], set[str]]:
    """Each section at its highest round, with the chain hash that most report there; who reports another.

    Nobody is judged after a view that was announced and never started: some nodes have restarted their chains for it.
    """
    said: dict[str, list[tuple[str, Section]]] = {}
    for name, answer in sorted(known.items()):
        for section in answer.sections:
            said.setdefault(section.name, []).append((name, section))
    targets, dissent = {}, set()
    for section_name, reports in sorted(said.items()):
        top = max(section.round for _, section in reports)
        there = [(name, section) for name, section in reports if section.round == top]
        chain = Counter(section.chain for _, section in there).most_common(1)[0][0]
        targets[section_name] = Section(section_name, top, chain)
        if judge:
            dissent |= {name for name, section in there if section.chain != chain}
    return targets, dissent


def _stands(answer: Flushed, targets: Mapping[str, Section], step: int, mode: str) -> bool:
    """Whether the node is where the view takes up, or gets there with what it holds."""
    if mode == "gradient":
        return answer.step == step or answer.ready_step >= step
    return all(section.round == targets[section.name].round for section in answer.sections)


def _ranges(layers: list[int]) -> str:
    if len(layers) == 1:
        return f"layer {layers[0]}"
    return f"layers {', '.join(map(str, layers))}"


def planned_nodes(plan: Plan, announcement: Announcement) -> frozenset[tuple[str, str]]:
    """(name, session) of everybody who trains in an announced view."""
    training = set(plan.nodes)
    return frozenset((member.name, member.session) for member in announcement.members if member.name in training)
