"""Handovers: where a layer moves to another node, the residual of its former node (learnt, but not sent) moves too.
Pure.

In ``delta`` mode the residual is x - g, in ``gradient`` mode the error feedback of a lossy codec. A node that leaves
contributes x - g before its view ends. A node that changes its place learns of that only from the plan, so the view
says which node takes its residual over (node/training/changes/handover.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ....job.schema import Job
from ....scheduler.plans import Plan
from ..signals import Flushed, Handover


@dataclass(frozen=True)
class Residuals:
    """Which residuals nodes hold. ``alone``: whether a node that is alone in its group holds one too.

    ``shown_to_nobody``: the setting that forbids a node to show its update to others; empty: no setting does.
    ``gradient``: the residual is an error feedback, and nodes report for which layers they have one.
    """

    alone: bool = False
    shown_to_nobody: str = ""
    gradient: bool = False


def residuals_of(job: Job) -> Residuals | None:
    """Which residuals the nodes of a job hold; None where they hold none."""
    updates = job.updates
    if not updates.agreed:
        return None
    secret = "updates.secure" if updates.secure else "updates.robust" if updates.robust_average else ""
    gradient = updates.mode == "gradient"
    return Residuals(not gradient and not updates.outer_optimizer.is_average, secret, gradient)


def handovers(
    base: Plan,
    plan: Plan,
    holders: Sequence[Collection[str]],
    gone: Collection[str],
    residuals: Residuals | None,
    unsent: Mapping[str, Mapping[int, float]] | None = None,
) -> tuple[Handover, ...]:
    """The handovers when ``plan`` follows ``base``, the plan that trained last.

    holders: for each layer, the nodes of the new view that have its reference, and so a residual. gone: the nodes that
    have given their last contribution. unsent: node -> layer -> the norm that it reported; in gradient mode, and with a
    single pipeline, only layers with a reported norm are handed over. A layer's residual goes to the giver's own
    pipeline where it has one, else to the pipeline with the largest share, where it changes the weights least.
    """
    if residuals is None or base.layers != plan.layers:
        return ()
    must_say = residuals.gradient or (len(base.pipelines) == 1 and not residuals.alone)
    said = unsent or {}
    ends = (0, plan.layers - 1)
    largest = max(range(len(plan.pipelines)), key=lambda d: (plan.microbatches[d], -d))
    found: dict[tuple[str, str], list[int]] = {}
    tied: set[tuple[str, str]] = set()
    for giver in base.nodes:
        if giver in gone:
            continue
        keeps = plan.layers_of(giver) if giver in plan else frozenset[int]()
        trained = base.layers_of(giver)
        takers = plan.pipelines[plan.pipeline_of(giver) if giver in plan else largest]
        has = {layer for layer, norm in said.get(giver, {}).items() if norm} if must_say else trained
        for layer in sorted((trained - keeps) & has):
            if layer < len(holders) and giver in holders[layer]:
                found.setdefault((giver, takers[_stage_of(plan, layer)]), []).append(layer)
        mine = [layer for layer in ends if layer in trained & has]
        if mine and not keeps.intersection(ends) and giver in holders[mine[0]]:
            tied.add((giver, takers[0]))
            found.setdefault((giver, takers[0]), [])
    return tuple(
        Handover(giver, taker, tuple(layers), (giver, taker) in tied) for (giver, taker), layers in found.items()
    )


def lost(found: Collection[Handover], flushed: Mapping[str, Flushed], why: str, gradient: bool = False) -> str:
    """In words, the residuals that are lost because nothing may be handed over; empty where there are none."""
    layers = sorted({layer for one in found for layer in one.layers})
    said = (flushed[one.giver].unsent.get(layer, 0.0) for one in found for layer in one.layers)
    norm = math.hypot(*said)  # math.hypot raises no error, whatever number a node has reported
    moved = max((flushed[one.giver].moved for one in found), default=0.0)
    if not norm:
        return ""
    of = "a gradient" if gradient else "what the weights have moved"
    much = f"{norm / moved:.1%} of {of}" if moved else f"norm {norm:.3g}"
    which = f"layer{'s' * (len(layers) > 1)} {', '.join(map(str, layers))}"
    return f"what the nodes of before had learnt of {which} and not sent ({much}) is lost: {why} shows it to nobody"


def _stage_of(plan: Plan, layer: int) -> int:
    return next(stage for stage, (first, last) in enumerate(plan.stages) if first <= layer <= last)
