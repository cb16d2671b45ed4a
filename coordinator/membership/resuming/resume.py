"""Where the next view takes up: a pure function of what the survivors of the last one hold.

``gradient`` mode: steps are atomic, so the highest step that any survivor finished is finished by all (those who
only held its results, "ready", apply it with the norm that the view carries), and anything above is dropped.
``delta`` mode: every pipeline finishes steps by itself; the view goes on after the highest, and the positions of
the stream that some pipeline took in steps that it did not finish are trained again first.
Either way a section stands at the highest round that a survivor applied. A node that is one round behind in a section
has what that round needs asked of those who applied it, so it is a holder too; further behind it is not. If a layer
has no holder left, everybody goes back to the newest complete checkpoint.

Nodes that report different chain hashes for one round of a section have different histories: most of them are right,
the others hold nothing that anybody may use. As many against as many is a tie, and decided by the checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ....job.data.sampling import Mixture, Position, unfinished
from ....scheduler.plans import Plan
from ..faults.majority import beyond
from ..signals import Announcement, Flushed, Section
from .handovers import Residuals
from .learnt import Kept, Unsent, taken_up

_TIED = "tied"  # the section of an embedding that the first and the last stage share; a stage's own is "stage-K"
_CATCHES_UP = 1  # rounds that a holder may be behind: results of earlier ones may be in nobody's log any more


@dataclass(frozen=True)
class Rules:
    """The constants of a run's membership. Times in seconds.

    ``wanted`` nodes are needed for the first view, ``wanted_why`` says where the number comes from. A checkpoint is due
    every ``checkpoint_every`` steps (0: never), unless the job was changed. Pipelines of ``delta`` mode meet in a round
    every ``round_every`` steps (0: nobody waits for others). An evaluation is due every ``eval_every`` steps (0: at the
    end alone), unless the job was changed, and has the samples of ``evaluation`` steps. ``samples`` are the
    training samples, ``layers`` the model's layers, ``base`` the model folder whose frozen weights adapters stand
    beside. A node without heartbeat for ``doubt_s`` is dialled and out if it does not answer; one that answers (an
    overloaded machine does) is out after ``silence_s``. From its join to its first hello a node has ``arrive_s``, to
    hand over its last contribution when it is told to ``leave_s``.

    Whatever moves bytes or computes is waited for by progress (proto/connections/patience.py): for an answer to the
    flush until nothing has moved for ``flush_s`` (``first_s`` while nobody knows how long a step takes), for a node
    that prepares or catches up ``prepare_s``, for the last checkpoint ``last_checkpoint_s``, and for the one that a
    coordinator wants before it ends ``save_s``; more where the link is slow, or a step takes long. A trainer may do
    nothing for ``hung_s`` while it trains (``first_s`` in its first step), or 10 steps. A needed connection may be
    down for ``down_s`` and some round trips before it costs a view change.
    """

    mode: str
    batch: int
    microbatch: int
    seed: int
    samples: int | Mixture
    layers: int
    wanted: int = 1
    wanted_why: str = "one node"
    checkpoint_every: int = 0
    round_every: int = 0
    base: str = ""
    residuals: Residuals | None = None
    """That nodes hold what they have learnt and not sent."""
    settle_s: float = 1.0
    measure_s: float = 15.0
    arrive_s: float = 120.0
    flush_s: float = 120.0
    first_s: float = 600.0
    hung_s: float = 120.0
    prepare_s: float = 120.0
    last_checkpoint_s: float = 120.0
    doubt_s: float = 3.0
    silence_s: float = 15.0
    return_s: float = 5.0
    leave_s: float = 30.0
    save_s: float = 15.0
    eval_every: int = 0
    evaluation: float = 0.0
    give_up: bool = False
    """The run is done without its last checkpoint where that does not come."""
    down_s: float = 5.0
    layer_bytes: tuple[float, ...] = ()
    """Of each layer, what a node fetches that is to hold it: weights and what moves them. Empty: not known."""
    data_bytes: float = 0.0
    """What a node fetches of the data before its first step, at most."""


@dataclass(frozen=True)
class Resume:
    """The decision. ``checkpoint`` >= 0: everybody loads that.

    ``sections`` have the chain hash of the majority, 0 where nobody was judged. ``dissent``: nodes that were outvoted.
    """

    position: Position
    sections: tuple[Section, ...] = ()
    holders: tuple[tuple[str, ...], ...] = ()
    checkpoint: int = -1
    norm: float = 0.0
    dissent: tuple[str, ...] = ()
    why: str = ""
    restores: tuple[str, ...] = ()
    """Who contributes again what it kept beside the checkpoint."""


def resume(
    rules: Rules,
    base: Announcement | None,
    pinned: Announcement | None,
    eligible: frozenset[tuple[str, str]],
    flushed: Mapping[str, Flushed],
    reported: Mapping[str, int],
    newest: Position,
    judge: bool = True,
    unsent: Unsent | None = None,
    kept: Kept | None = None,
) -> Resume:
    """Decide where to go on.

    base: the view that trained last. pinned: one announced since that never started: its position and rounds stand,
    because nodes may have taken it over. eligible: (name, session) that may hold current state. flushed: the
    survivors' answers. reported: the last finished step that the coordinator heard of from each node, dead ones too.
    newest: the newest complete checkpoint's position, step 0 for the initial weights. judge: whether chain hashes can
    be compared. They cannot when a view was announced and may not have started: some have begun new chains for it.
    unsent, kept: what nodes had learnt beside the newest checkpoint (learnt.py).
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
    dissent, tie = _judge(known) if judge else (frozenset[str](), "")
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
        # A step that nobody who is left has applied was finished by the view that took up after it.
        started = base.norm if step == base.position.step else 0.0
        norms = Counter(answer.norm for answer in trusted.values() if answer.step == step)
        norm = norms.most_common(1)[0][0] if norms else started
    else:
        position, norm = _after_delta(rules, base, known, reported), 0.0
    sections = {section.name: section for section in (pinned.sections if pinned is not None else ())}
    sections = sections or _sections(trusted)
    if rules.mode == "gradient" and pinned is None:  # results of that step are here, applied or not
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
    return Resume(position, stand, holders, -1, norm, tuple(sorted(dissent)), why)


def _after_delta(
    rules: Rules, base: Announcement, known: Mapping[str, Flushed], reported: Mapping[str, int]
) -> Position:
    """A pipeline has finished what its last stage has reported, for that report is where samples are counted."""
    plan, first = base.plan, base.position.step
    finished = [
        max(first, known[last].step if last in known else reported.get(last, first))
        for last in (pipeline[-1] for pipeline in plan.pipelines)
    ]
    if rules.round_every and len(finished) > 1:  # rounds let no pipeline run further ahead: such a claim does not count
        limit = sorted(finished)[-2] + 3 * int(plan.chosen.get("updates.every", rules.round_every))
        finished = [one if one <= limit else sorted(finished)[-2] for one in finished]
    step = max(finished)
    again = unfinished(base.position, finished, step, plan.microbatches, rules.microbatch, rules.seed, rules.samples)
    return base.position.after(step, rules.batch, again)


def _sections(trusted: Mapping[str, Flushed]) -> dict[str, Section]:
    """Each section at the highest round that any trusted node has applied."""
    targets: dict[str, Section] = {}
    for _, answer in sorted(trusted.items()):
        for section in answer.sections:
            if section.name not in targets or section.round > targets[section.name].round:
                targets[section.name] = section
    return dict(sorted(targets.items()))


def _judge(known: Mapping[str, Flushed]) -> tuple[frozenset[str], str]:
    """(nodes whose history of a section most others do not have, a sentence when as many say one thing as another).

    A tie below a section's highest round needs no checkpoint: those who went on are right, and nobody of the tie is
    trusted.
    """
    trusted = dict(known)
    while True:
        outvoted: set[str] = set()
        ties: list[tuple[str, int, list[list[str]]]] = []
        for (section, round), camps in _histories(trusted).items():
            if len(camps) > 1 and len(camps[0]) > len(camps[1]):
                outvoted.update(name for camp in camps[1:] for name in camp)
            elif len(camps) > 1:
                ties.append((section, round, camps))
        if not outvoted:
            targets = _sections(trusted)
            for section, round, camps in ties:
                if round == targets[section].round:
                    said = " against ".join(", ".join(camp) for camp in camps)
                    return (
                        frozenset(),
                        f"as many nodes hold one history of {section} as another after round {round} ({said})",
                    )
                outvoted.update(name for camp in camps for name in camp)
        if not outvoted:
            return frozenset(known) - frozenset(trusted), ""
        trusted = {name: answer for name, answer in trusted.items() if name not in outvoted}


def _histories(trusted: Mapping[str, Flushed]) -> dict[tuple[str, int], list[list[str]]]:
    """Who reports the same chain hash, for each round of each section, the largest camp first."""
    said: dict[tuple[str, int], dict[int, list[str]]] = {}
    for name, answer in sorted(trusted.items()):
        for section in answer.sections:
            said.setdefault((section.name, section.round), {}).setdefault(section.chain, []).append(name)
    return {where: sorted(chains.values(), key=len, reverse=True) for where, chains in said.items()}


def _current(
    plan: Plan, trusted: Mapping[str, Flushed], targets: Mapping[str, Section], taken_over: bool
) -> frozenset[str]:
    """``delta`` mode: nodes that are where the view takes up, or get there with the results that others hold.

    Layers of a stage move with that stage's section, and those of a tied embedding with both, so a node counts when
    none of its own sections is too far behind, and some survivor of its group is at the target to catch up from.
    plan: the one that trained. taken_over: nodes may have taken over a view that did not start. Such a node names its
    sections by that view's plan, and has the view's highest round for all of them.
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
        for section, group in _groups(plan).items()
        for name in near & group
        if lags[name].get(section) == 0 or not any(lags[name].values())
    }
    return frozenset(
        name for name in near if all(rounds == 0 or section in reached for section, rounds in lags[name].items())
    )


def _groups(plan: Plan) -> dict[str, frozenset[str]]:
    """The nodes that share each section of a plan."""
    last = len(plan.stages) - 1
    found = {f"stage-{stage}": frozenset(plan.group(stage)) for stage in range(last + 1)}
    return {**found, _TIED: found["stage-0"] | found[f"stage-{last}"]}


def fresh_layers(plan: Plan, holders: tuple[tuple[str, ...], ...]) -> str:
    """In words, the layers of a plan whose state none of its nodes has from the last view."""
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
    """(name, session) of everybody who trains in an announced view."""
    training = set(plan.nodes)
    return frozenset((member.name, member.session) for member in announcement.members if member.name in training)
