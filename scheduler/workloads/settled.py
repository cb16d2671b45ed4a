"""A workload with what a plan chose, or may choose, in the place of what the job leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..plans import Plan
from .workload import Workload

EVERY_KEY, RECOMPUTE_KEY, MICROBATCH_KEY = "updates.every", "train.recompute", "train.microbatch"
"""Keys of the job, of which a plan says what it chose (Plan.chosen)."""


def is_open(workload: Workload) -> bool:
    """Whether a plan has to choose more than a placement, and codecs for it."""
    return bool(workload.intervals or workload.schedules or workload.auto_recompute or workload.sizes)


def settled(
    workload: Workload,
    every: int | None = None,
    schedule: str | None = None,
    recompute: bool | None = None,
    microbatch: int | None = None,
) -> Workload:
    """The workload with these choices, None: what it has. Of what it does not leave open nothing changes."""
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
    """The workload with what a plan chose of the job's keys."""
    if not is_open(workload):
        return workload
    chosen: Mapping[str, int | bool] = plan.chosen
    again = chosen.get(RECOMPUTE_KEY)
    schedule = plan.schedule if plan.schedule in workload.schedules else None
    return settled(
        workload,
        chosen.get(EVERY_KEY),
        schedule,
        None if again is None else bool(again),
        chosen.get(MICROBATCH_KEY),
    )


def as_chosen(workload: Workload, plan: Plan) -> Workload:
    """The same, and with the overlap and the codecs of updates that the plan chose, if it chose any."""
    workload = as_settled(workload, plan)
    bits = dict(workload.update_ladder)
    found = [plan.update_codec(place) or "" for place in range(len(set(plan.pipelines[0])))]
    if plan.overlap is None or any(name not in bits for name in found):
        return workload
    return replace(workload, overlap=plan.overlap, update_bits=tuple(bits[name] for name in found))
