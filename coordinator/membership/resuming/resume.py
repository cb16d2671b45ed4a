"""The position from which the next view continues: a pure function of what the survivors of the last view hold.

``gradient`` mode: steps are atomic, so all finish the highest step that any survivor finished (those that only held its
results, "ready", apply it with the norm that the view carries), and later steps are dropped. ``delta`` mode: every
pipeline finishes steps independently; the view continues after the highest step. Positions of the stream that some
pipeline took in steps that it did not finish are trained again first. In both modes a section resumes at the highest
round that a survivor applied. A node that is one round behind fetches that round's results from those that applied it,
so it counts as a holder; a node further behind does not. If a layer has no holder left, all nodes go back to the newest
complete checkpoint.

Nodes that report different chain hashes for one round of a section have different histories: the majority is right, and
the state of the others is not used. Equal camps are a tie: all go back to the checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace

from ....job.data.sampling import Position, unfinished
from ....proto.words.sections import stages_of
from ....scheduler.plans import Plan
from ..faults.majority import beyond
from ..rules import Rules
from ..signals import Announcement, Flushed, Section
from .histories import judge_histories, sections_of
from .learnt import Kept, Unsent, taken_up

_CATCHES_UP = 1  # most rounds that a holder may be behind: no log may have the results of earlier rounds


@dataclass(frozen=True)
class Resume:
    """The decision. ``checkpoint`` >= 0: every node loads the checkpoint of that step.

    ``sections``: with the majority's chain, 0 where chains were not compared. ``dissent``: the nodes that were
    outvoted.
    """

    position: Position
    sections: tuple[Section, ...] = ()
    holders: tuple[tuple[str, ...], ...] = ()
    checkpoint: int = -1
    norm: float = 0.0
    dissent: tuple[str, ...] = ()
    _: KW_ONLY
    why: str = ""
    restores: tuple[str, ...] = ()
    """The nodes that contribute the residual that they kept beside the checkpoint."""


def resume(
    rules: Rules,
    base: Announcement | None,
    pinned: Announcement | None,
    eligible: frozenset[tuple[str, str]],
    flushed: Mapping[str, Flushed],
    reported: Mapping[str, int],
    *,
    newest: Position,
    judge: bool = True,
    unsent: Unsent | None = None,
    kept: Kept | None = None,
) -> Resume:
    """Decide where training continues.

    base: the view that trained last. pinned: a view announced since then that never started; its position and rounds
    are kept, because nodes may have adopted it. eligible: (name, session) of nodes that may hold current state.
    flushed: the survivors' answers. reported: each node's last finished step as reported to the coordinator, dead nodes
    included. newest: the newest complete checkpoint's position, step 0 for the initial weights. judge: whether chains
    can be compared. They can't when a view was announced and may not have started, because some nodes have begun new
    chains for it. unsent, kept: the residuals beside the newest checkpoint (learnt.py).
    """
    start = f"the weights of {rules.base}" if rules.base else "the initial weights"

    def go_back(why: str) -> Resume:
        where = f"from the checkpoint of step {newest.step}" if newest.step else f"from {start}"
        here = {name: answer.kept for name, answer in flushed.items()}
        position, restores, said = taken_up(newest, unsent, here, kept or {}, rules.mode == "gradient")
        sentence = "; ".join(one for one in (f"{why}: {where}" if why else where, said) if one)
        return Resume(position, checkpoint=newest.step, why=sentence, restores=restores)

    if base is None or (pinned is not None and pinned.checkpoint >= 0):
        return go_back("")
    known = {name: answer for name, answer in flushed.items() if (name, answer.session) in eligible}
    if not known:
        return go_back("no node of the last view is left")
    judge = judge and pinned is None
    dissent, tie = judge_histories(known) if judge else (frozenset[str](), "")
    if tie:
        return go_back(tie)
    trusted = {name: answer for name, answer in known.items() if name not in dissent}
    if pinned is None and (ahead := beyond(rules.mode, base.position.step, trusted)):
        dissent |= ahead
        trusted = {name: answer for name, answer in trusted.items() if name not in ahead}
    if pinned is not None:
        position, norm = pinned.position, pinned.norm
    elif rules.mode == "gradient":
        step = max(base.position.step, *(answer.step for answer in trusted.values()))
        position = base.position.after(step, rules.batch)
        # If no survivor applied the step, the view that resumed after it had finished it.
        started = base.norm if step == base.position.step else 0.0
        norms = Counter(answer.norm for answer in trusted.values() if answer.step == step)
        norm = norms.most_common(1)[0][0] if norms else started
    else:
        position, norm = _after_delta(rules, base, known, reported), 0.0
    sections = {section.name: section for section in (pinned.sections if pinned is not None else ())}
    sections = sections or sections_of(trusted)
    if rules.mode == "gradient" and pinned is None:  # the survivors have the results of that step, applied or not
        for section in base.sections:
            if section.round > sections.get(section.name, section).round:
                sections[section.name] = replace(section, chain=0)
    if rules.mode == "gradient":
        step = position.step
        current = frozenset(name for name, one in trusted.items() if one.step == step or one.ready_step >= step)
    else:
        current = _current(base.plan, trusted, sections, taken_over=pinned is not None)
    holders = tuple(
        tuple(sorted(name for name in current if layer in known[name].layers)) for layer in range(rules.layers)
    )
    missing = [layer for layer, names in enumerate(holders) if not names]
    if missing:
        return go_back(f"nobody holds {_ranges(missing)} any more")
    why = f"training goes on after step {position.step}"
    if position.redo:
        why += f", {len(position.redo)} samples are trained again"
    stand = tuple(section if judge else Section(section.name, section.round, 0) for section in sections.values())
    return Resume(position, stand, holders, -1, norm, tuple(sorted(dissent)), why=why)


def _after_delta(
    rules: Rules, base: Announcement, known: Mapping[str, Flushed], reported: Mapping[str, int]
) -> Position:
    """The position after a view in delta mode. A pipeline has finished the steps that its last stage has reported,
    because samples are counted in that report."""
    plan, first = base.plan, base.position.step
    finished = [
        max(first, known[last].step if last in known else reported.get(last, first))
        for last in (pipeline[-1] for pipeline in plan.pipelines)
    ]
    if rules.round_every and len(finished) > 1:  # no pipeline can be further ahead
        limit = sorted(finished)[-2] + 3 * int(plan.chosen.get("updates.every", rules.round_every))
        finished = [one if one <= limit else sorted(finished)[-2] for one in finished]
    step = max(finished)
    size = int(plan.chosen.get("train.microbatch", rules.microbatch))
    again = unfinished(base.position, finished, step, plan.microbatches, size, rules.seed, samples=rules.samples)
    return base.position.after(step, rules.batch, again)


def _current(
    plan: Plan, trusted: Mapping[str, Flushed], targets: Mapping[str, Section], taken_over: bool
) -> frozenset[str]:
    """``delta`` mode: the nodes that are at the view's rounds, or get there with results that other nodes hold.

    Layers of a stage move with that stage's section, and those of a tied embedding with both, so a node counts when
    none of its own sections is too far behind, and some survivor of its group is at the target to catch up from.
    plan: the one that trained. taken_over: nodes may have adopted a view that did not start. Such a node names its
    sections by that view's plan, and is at the view's highest round in all of them.
    """
    start = max((section.round for section in targets.values()), default=0) if taken_over else None

    def lag(section: Section) -> int:
        if section.round == start:
            return 0
        return targets[section.name].round - section.round if section.name in targets else -1

    lags = {name: {one.name: lag(one) for one in answer.sections} for name, answer in trusted.items()}
    near = {name for name, behind in lags.items() if all(0 <= rounds <= _CATCHES_UP for rounds in behind.values())}
    reached = {
        section
        for section in {one for sections in lags.values() for one in sections}
        for name in near & _group(plan, section)
        if lags[name].get(section) == 0 or not any(lags[name].values())
    }
    return frozenset(
        name for name in near if all(rounds == 0 or section in reached for section, rounds in lags[name].items())
    )


def _group(plan: Plan, section: str) -> frozenset[str]:
    """The nodes that share a section of a plan; none if the plan has no such section."""
    last = len(plan.stages) - 1
    try:
        stages = stages_of(section, last)
    except ValueError:  # a node may send any name
        return frozenset()
    return frozenset(name for stage in stages if 0 <= stage <= last for name in plan.group(stage))


def fresh_layers(plan: Plan, holders: tuple[tuple[str, ...], ...]) -> str:
    """In words, the layers of a plan for which none of the layer's nodes has state from the last view."""
    fresh = []
    for stage, (first, last) in enumerate(plan.stages):
        group = set(plan.group(stage))
        fresh += [layer for layer in range(first, last + 1) if layer < len(holders) and not group & set(holders[layer])]
    return _ranges(fresh) if fresh else ""


def _ranges(layers: list[int]) -> str:
    if len(layers) == 1:
        return f"layer {layers[0]}"
    return f"layers {', '.join(map(str, layers))}"


def planned_nodes(plan: Plan, announcement: Announcement) -> frozenset[tuple[str, str]]:
    """(name, session) of each node that trains in an announced view."""
    training = set(plan.nodes)
    return frozenset((member.name, member.session) for member in announcement.members if member.name in training)
