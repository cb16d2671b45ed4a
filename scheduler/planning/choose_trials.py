"""Which other microbatches, recompute and offload a view's first steps try, and when what was measured still holds.

Tried are the plan's own choice, the next smaller and the next larger microbatch, and the other choice of recompute,
each only where the job says "auto" and where the arithmetic says that it fits every device's memory with the plan's
placement. Where the job leaves ``train.offload`` open, what fits only with the optimiser's moments in main memory is
tried so; and a plan that has them there tries its own choice with them on the device, where that fits. They move
alone. A plan with microbatches in pieces, which fit only just, tries whole ones so. The other kinds are not tried: for
these a node lays out all of its state anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..after_trials import with_trial
from ..networks.network import Network
from ..plans import Plan
from ..search.shapes import size_text
from ..timing.depth import in_flight
from ..timing.estimate import Cut, Estimator
from ..trials import Trial, Tuning
from ..workloads.layers import beside, held_by_stage, stage_memory
from ..workloads.offload import MOMENTS, NONE, OF_AUTO, PARAMETERS
from ..workloads.settled import MICROBATCH_KEY, OFFLOAD_KEY, RECOMPUTE_KEY, as_chosen, settled
from ..workloads.workload import Workload
from .choose_offload import possible
from .replan import placement_of

MOST_BROKEN = 2
"""After so many trials during which nodes were lost, nothing more is tried in a run: a trial may have taken their
memory."""


def held(workload: Workload, current: Plan | None) -> Workload:
    """The workload with what was measured in the plan in force: its microbatch and recompute are no longer open, nor
    its offload if that was compared. Where nothing is computed again, blocks' weights can't pass through the device
    (`offloaded`)."""
    if current is None or current.tuning is None or not current.tuning.measured:
        return workload
    size, again = current.chosen.get(MICROBATCH_KEY), current.chosen.get(RECOMPUTE_KEY)
    if workload.sizes and size not in [one.microbatch for one in workload.sizes]:
        return workload  # the job was changed
    only = settled(
        replace(workload, intervals=(), schedules=(), offloads=()),
        recompute=None if again is None else bool(again),
        microbatch=None if size is None else int(size),
    )
    kinds = (current.tuning.offload,) if current.tuning.offload else OF_AUTO
    offloads = tuple(
        one for one in workload.offloads if one.kind in kinds and (one.kind != PARAMETERS or only.recompute)
    )
    return replace(only, intervals=workload.intervals, schedules=workload.schedules, offloads=offloads)


def with_trials(network: Network, workload: Workload, made: Plan, current: Plan | None) -> Plan:
    """The plan with its trials, or with what the plan in force knows of the same shape.

    workload: with all that the job leaves open. current: the plan in force; None: the run's first plan.
    """
    if not (workload.sizes or workload.auto_recompute or workload.offloads):
        return made
    before = None if current is None else current.tuning
    broken = 0 if before is None else before.broken
    ended = broken >= MOST_BROKEN
    if current is not None and before is not None and _same_shape(made, current) and not (ended and before.trials):
        return made if made.tuning == before else replace(made, tuning=before)
    if ended:
        why = f"nothing more is tried: nodes were lost during trials, {broken} times"
        return replace(made, tuning=_as_known(Tuning((), why, broken), made, current))
    return replace(made, tuning=_as_known(_tuning(network, workload, made, broken), made, current))


def _as_known(tuning: Tuning | None, made: Plan, current: Plan | None) -> Tuning | None:
    """Of another shape than the plan in force: what was measured there is this plan's own choice (`held`), and stays
    the run's until this shape's trials are decided, even if its view ends before. Where no plan was found with it, this
    plan's choice is one that nobody compared."""
    before = None if current is None else current.tuning
    if current is None or before is None or not before.measured:
        return tuning
    keys = (MICROBATCH_KEY, RECOMPUTE_KEY, *((OFFLOAD_KEY,) if before.offload else ()))
    if any(made.chosen.get(key) != current.chosen.get(key) for key in keys):
        return tuning
    return replace(tuning or Tuning(), measured=True, offload=before.offload)


def _same_shape(made: Plan, current: Plan) -> bool:
    """Whether what was measured with the plan in force is true of the other plan too."""
    return (
        made.pipelines == current.pipelines
        and made.stages == current.stages
        and made.microbatches == current.microbatches
        and made.schedule == current.schedule
        and made.pieces == current.pieces
        and all(made.chosen.get(key) == current.chosen.get(key) for key in (MICROBATCH_KEY, RECOMPUTE_KEY, OFFLOAD_KEY))
    )


def _tuning(network: Network, workload: Workload, made: Plan, broken: int) -> Tuning | None:
    """None, or no trials, where nothing else can be tried: microbatches in pieces fit only just, unless moments can
    move, and an island's processes would have to be told of each trial."""
    islands = any(network.devices[network.index[node]].ranks > 1 for node in made.nodes)
    kind, kinds = made.chosen.get(OFFLOAD_KEY), possible(network, workload)
    may_move = kind == NONE and MOMENTS in kinds
    if islands or (made.pieces and not may_move):
        return Tuning(broken=broken) if broken else None
    trials: list[Trial] = [_own(workload, made)]
    moved: list[Trial] = []
    """Those for which moments move: they come last, so that they seldom do."""
    said: list[str] = []
    for one in _others(workload, made, said):
        deep, why = _fitted(network, workload, made, one)
        if not why:
            trials.append(deep)
        elif may_move and not (found := _fitted(network, workload, made, _at(one, MOMENTS)))[1]:
            moved.append(found[0])
        else:
            said.append(f"{one.name} is not tried: {why}")
    if kind == MOMENTS and NONE in kinds:
        deep, why = _fitted(network, workload, made, _at(trials[0], NONE))
        moved += [] if why else [deep]
    if moved:
        trials = [*(_at(one, str(kind)) for one in trials), *moved]
    if len(trials) == 1 and not (said or broken):
        return None
    return Tuning(tuple(trials) if len(trials) > 1 else (), "; ".join(said), broken)


def _at(trial: Trial, offload: str) -> Trial:
    return replace(trial, offload=offload)


def _fitted(network: Network, workload: Workload, made: Plan, trial: Trial) -> tuple[Trial, str]:
    """The trial with its microbatches in flight, and which device's memory is too small for it; empty: none is."""
    other = with_trial(made, trial)
    settled_so = replace(as_chosen(workload, other), schedule=made.schedule)
    deep = replace(trial, in_flight=_in_flight(network, settled_so, other))
    return deep, _lacks(network, settled_so, with_trial(made, deep))


def _own(workload: Workload, made: Plan) -> Trial:
    again = made.chosen.get(RECOMPUTE_KEY)
    size = int(made.chosen.get(MICROBATCH_KEY, workload.microbatch))
    return Trial(size, None if again is None else bool(again), made.in_flight, pieces=made.pieces)


def _others(workload: Workload, made: Plan, said: list[str]) -> Iterator[Trial]:
    """``said``: takes a sentence where no smaller, or no larger, microbatch divides every pipeline's samples."""
    own = _own(workload, made)
    if made.pieces:
        yield Trial(own.microbatch, own.recompute)
    elif workload.sizes and made.schedule != "interleaved":  # which wants as many microbatches as it has stages
        known = [one.microbatch for one in workload.sizes]
        at = known.index(own.microbatch)
        shares = [count * own.microbatch for count in made.microbatches]
        for sizes, which in ((known[:at][::-1], "smaller"), (known[at + 1 :], "larger")):
            size = next((size for size in sizes if all(share % size == 0 for share in shares)), None)
            if size is not None:
                yield Trial(size, own.recompute)
            elif sizes:
                samples = ", ".join(map(str, sorted(set(shares))))
                said.append(
                    f"no {which} microbatch is tried: none of {sizes} divides each pipeline's {samples} samples"
                )
    if workload.auto_recompute and made.chosen.get(OFFLOAD_KEY) != PARAMETERS:  # which has to compute again
        yield Trial(own.microbatch, not own.recompute)


def _in_flight(network: Network, workload: Workload, plan: Plan) -> tuple[tuple[int, ...], ...]:
    found = placement_of(network, plan)
    assert found is not None
    cut = Cut(workload, plan.stages, len(plan.stages) // found.places.shape[1])
    return in_flight(Estimator(network, workload, plan.codecs), found.places, cut, plan.microbatches)


def _lacks(network: Network, workload: Workload, plan: Plan) -> str:
    """Which device's memory is too small; empty where all are large enough."""
    one, stages = beside(workload, len(plan.pipelines)), len(plan.stages)
    for number, row in enumerate(plan.pipelines):
        chunks = stages // len(set(row))
        usual = held_by_stage(one, stages, plan.microbatches[number], chunks)
        for node in dict.fromkeys(row):
            need = sum(
                stage_memory(one, *plan.stages[stage], plan.in_flight_of(number, stage) or usual[stage])
                for stage in plan.stages_of(node)
            )
            has = float(network.memory[network.index[node]])
            if need > has:
                return f"it needs {size_text(need)} of the {size_text(has)} of {node}"
    return ""
