"""A workload whose open keys ("auto" in the job) are replaced by a plan's choices."""

from __future__ import annotations

from dataclasses import replace

from ..plans import Plan
from .offload import PARAMETERS
from .workload import Workload

EVERY_KEY, RECOMPUTE_KEY, MICROBATCH_KEY = "updates.every", "train.recompute", "train.microbatch"
INSIDE_KEY, OFFLOAD_KEY = "parallel.inside", "train.offload"
"""Keys of the job under which Plan.chosen has the plan's choice."""


def is_open(workload: Workload) -> bool:
    """Whether the job leaves more to the plan than a placement and its codecs."""
    return bool(
        workload.intervals or workload.schedules or workload.auto_recompute or workload.sizes or workload.offloads
    )


def offloaded(workload: Workload, kind: str | None = None) -> Workload:
    """The workload with this kind of offload, if the job leaves it open; None: the least. All else stays open."""
    if not workload.offloads:
        return workload
    lies = next((one for one in workload.offloads if one.kind == kind), workload.offloads[0])
    chosen = {**dict(workload.chosen), OFFLOAD_KEY: lies.kind}
    if lies.kind == PARAMETERS and workload.auto_recompute:  # weights that a backward pass keeps would stay
        workload = replace(workload, recompute=True, auto_recompute=False)
        chosen[RECOMPUTE_KEY] = True
    return replace(
        workload,
        offloads=(),
        chosen=tuple(chosen.items()),
        **lies.fields,
    )


def settled(
    workload: Workload,
    every: int | None = None,
    schedule: str | None = None,
    recompute: bool | None = None,
    microbatch: int | None = None,
    *,
    offload: str | None = None,
) -> Workload:
    """The workload with these choices; None takes the workload's present value. Keys that the job does not leave open
    do not change."""
    workload = offloaded(workload, offload)
    chosen = dict(workload.chosen)
    if workload.intervals:
        every = workload.every if every is None else every
        found = min(workload.intervals, key=lambda one: abs(one.every - every))
        workload = replace(
            workload,
            every=found.every,
            overlap=found.overlap,
            update_bits=found.update_bits,
            update_ladder=found.update_ladder,
            intervals=(),
        )
        chosen[EVERY_KEY] = found.every
    if workload.schedules:
        workload = replace(workload, schedule=schedule or workload.schedule, schedules=())
    if workload.auto_recompute:
        again = workload.recompute if recompute is None else recompute
        workload = replace(workload, recompute=again, auto_recompute=False)
        chosen[RECOMPUTE_KEY] = again
    if workload.sizes:
        size = workload.microbatch if microbatch is None else microbatch
        one = min(workload.sizes, key=lambda one: abs(one.microbatch - size))
        workload = replace(
            workload,
            microbatch=one.microbatch,
            efficiency=one.efficiency,
            activation_bits=one.activation_bits,
            gradient_bits=one.gradient_bits,
            codecs=one.codecs,
            sizes=(),
        )
        chosen[MICROBATCH_KEY] = one.microbatch
    return replace(workload, chosen=tuple(chosen.items()))


def as_settled(workload: Workload, plan: Plan) -> Workload:
    """The workload with the plan's choices for the job's open keys."""
    if not is_open(workload):
        return workload
    chosen = plan.chosen
    again = chosen.get(RECOMPUTE_KEY)
    schedule = plan.schedule if plan.schedule in workload.schedules else None
    every, size = chosen.get(EVERY_KEY), chosen.get(MICROBATCH_KEY)
    return settled(
        workload,
        None if every is None else int(every),
        schedule,
        None if again is None else bool(again),
        None if size is None else int(size),
        offload=None if chosen.get(OFFLOAD_KEY) is None else str(chosen[OFFLOAD_KEY]),
    )


def as_chosen(workload: Workload, plan: Plan) -> Workload:
    """The workload with all of the plan's choices: open keys, and the overlap and codecs of updates if the plan chose
    them."""
    workload = as_settled(workload, plan)
    bits = dict(workload.update_ladder)
    found = [plan.update_codec(place) or "" for place in range(len(set(plan.pipelines[0])))]
    if plan.overlap is None or any(name not in bits for name in found):
        return workload
    return replace(workload, overlap=plan.overlap, update_bits=tuple(bits[name] for name in found))
