"""Handover: when a layer moves to another node, its residual (what was learnt and not sent) moves too.

The giver serves p (x - g + e) of its parameters as ``local:NAME`` while the next view is prepared; p is its weight in
its group, e its error feedback, and g has the same bits on both. When the view starts, the receiver adds this, divided
by its own weight, to its own x: so the sum S = sum p (x + e) + server errors stays, also if the view is abandoned
before it starts and another one is made. In ``gradient`` mode the error feedback is handed over; its sum over the group
counts without weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import nullcontext

import torch
from torch import Tensor

from ....job.schema import Job
from ....proto import control_pb2
from ...context import NodeContext
from ...models.definition import ModelDefinition
from ...state.sections.vectors import squared_norm_of_sum
from ...state.stage_state import StageState
from ...state.transfers.fetching import StateFetch
from ...state.transfers.traffic import StateTraffic
from ..member.view_member import ViewMember

LOCAL = "local:"
"""Prefix of the parameters' names under which residuals are served."""
MOST = 1.0
"""A residual with a norm above so many times that of g is refused: no node can learn that much between rounds."""
MOST_GRADIENTS = 100.0
"""An error feedback with a norm above so many times that of the last committed gradient is refused."""


def may_be_handed_over(job: Job) -> bool:
    """Whether residuals may be handed over: not if no node may see another's own update (secure), and not if each
    update is checked before it counts (robust)."""
    updates = job.updates
    return updates.agreed and not updates.secure and not updates.robust_average


def given(job: Job, before: ViewMember | None, order: control_pb2.View) -> dict[str, dict[str, Tensor]]:
    """The residuals that this node hands over for the view of ``order``, as they are served: copies in main memory,
    fp32. ``before``: this node's membership in the view that ends."""
    mine = [one for one in order.handovers if before is not None and one.giver == before.context.name]
    if not mine or before is None or not may_be_handed_over(job):
        return {}
    wanted = {name for one in mine for name in _names(one, before.state, before.context.definition)}
    found: dict[str, dict[str, Tensor]] = {}
    for section_name, section in before.state.sections.items():
        share = section.weight or _counts(before, section_name)
        local = dict(section.layout.views(section.x))
        feedback = dict(section.layout.views(section.feedback)) if section.feedback is not None else {}
        for name, reference in section.layout.views(section.g):
            if name in wanted:
                rest = local[name] - reference
                if name in feedback:
                    rest += feedback[name]
                found[LOCAL + name] = {"": rest.mul_(share).to("cpu")}
        section.leave()
    return found


def taken(context: NodeContext, traffic: StateTraffic, order: control_pb2.View, new: StageState) -> dict[str, Tensor]:
    """Fetch the residuals that other nodes hand to this one: parameter -> p (x - g + e) (in gradient mode e), summed
    over the givers. If a giver is gone, its residual is lost; the coordinator gets a warning."""
    if not may_be_handed_over(context.job):
        return {}
    gradient = order.norm if new.gradient else None
    references = {name: values for one in new.sections.values() for name, values in one.layout.views(one.g)}
    fetches: dict[str, tuple[StateFetch, dict[str, Tensor]]] = {}
    for one in order.handovers:
        names = _names(one, new, context.definition)
        if one.taker == context.name != one.giver and names:
            values = {name: torch.empty_like(references[name], device="cpu") for name in names}
            fetches[one.giver] = (_fetch(traffic, one.giver, values), values)
    found: dict[str, Tensor] = {}
    while fetches:
        lost = traffic.take_lost()
        for giver, (fetch, values) in list(fetches.items()):
            fetch.work(lost)
            problem = fetch.failure or (_wrong(values, references, gradient) if fetch.done else "")
            if problem:
                which = f"{len(values)} parameters that move to {context.name}"
                context.warn(giver, f"what it had learnt of {which} and not sent is lost: {problem}")
            elif fetch.done:
                much = f"{len(values)} parameters and not sent (norm {_norm(values.values()):.3g})"
                context.tell(f"goes on with what {giver} had learnt of {much}")
                for name, one_value in values.items():
                    found[name] = found[name].add_(one_value) if name in found else one_value
            if problem or fetch.done:
                del fetches[giver]
        if fetches:
            context.pump(0.05)
    return found


def weigh(view: ViewMember) -> None:
    """The view starts with other shares of the batch: rescale so that p (x - g + e) of every member stays the same. Not
    in modes without agreed rounds, where x - g is not a residual."""
    if view.gradient or not view.job.updates.agreed:
        return
    with torch.no_grad():
        for name, section in view.state.sections.items():
            section.weigh(view.exchanges[name].share)


def add(view: ViewMember, handed: Mapping[str, Tensor]) -> None:
    """The view starts: add the handed-over residuals, divided by p, to x; in gradient mode to the error feedback."""
    with torch.no_grad():
        for section_name, section in view.state.sections.items():
            if handed.keys().isdisjoint(section.layout.names):
                continue
            for name, here in section.layout.slices():
                if name in handed:
                    more = handed[name].to(section.x.device).view(-1) / _counts(view, section_name)
                    with section.feeding(here) if view.gradient else nullcontext(section.x[here]) as values:
                        values.add_(more)
            section.leave()


def must_say(view: ViewMember) -> bool:
    """Whether this node reports the norms of its residuals to the coordinator: where they may not be handed over, the
    view tells what is lost; where most are zero, only the others are handed over."""
    updates = view.job.updates
    if not updates.agreed:
        return False
    if view.gradient:
        return any(section.feedback is not None for section in view.state.sections.values())
    alone = len(view.plan.pipelines) == 1 and not view.is_alone
    return updates.secure or bool(updates.robust_average) or alone


def unsent(view: ViewMember, layers: list[int], definition: ModelDefinition) -> tuple[list[float], float]:
    """(norm of this node's weighted residual for each of ``layers``, norm of g's change; in gradient mode, instead of
    the latter, the norm of the newest gradient)."""
    squares = dict.fromkeys(layers, 0.0)
    moved = 0.0
    for section_name, section in view.state.sections.items():
        exchange = view.exchanges[section_name]
        moved += exchange.own_norm**2 if view.gradient else section.moved**2
        vectors = exchange.unsent().values()
        for named in zip(*map(section.layout.views, vectors), strict=True):
            name = named[0][0]
            layer = definition.layer_of(name)
            if layer not in squares and name == definition.tied_trained:  # on the last stage's nodes
                layer = max(squares, default=layer)
            if layer in squares:
                terms = [values.reshape(-1) for _, values in named]
                squares[layer] += squared_norm_of_sum(terms) * _counts(view, section_name) ** 2
    return [math.sqrt(one) for one in squares.values()], math.sqrt(moved)


def _counts(view: ViewMember, section: str) -> float:
    """The weight of this member's residual in the sum S."""
    return 1.0 if view.gradient else view.exchanges[section].share


def _names(one: control_pb2.Handover, state: StageState, definition: ModelDefinition) -> list[str]:
    """The parameters of ``state`` that the handover ``one`` moves."""
    layers, tied = set(one.layers), definition.tied_trained
    names = [name for section in state.sections.values() for name in section.layout.names]
    return [name for name in names if (one.ends if name == tied else definition.layer_of(name) in layers)]


def _fetch(traffic: StateTraffic, giver: str, values: Mapping[str, Tensor]) -> StateFetch:
    wanted = {LOCAL + name: {"": one} for name, one in values.items()}
    return traffic.fetch(wanted, {LOCAL + name: [giver] for name in values})


def _wrong(values: Mapping[str, Tensor], references: Mapping[str, Tensor], gradient: float | None) -> str:
    """Why these values cannot be a residual; empty if they can. ``gradient``: in gradient mode the norm of the last
    step's gradient."""
    norm, most = _norm(values.values()), _norm(references[name] for name in values)
    limit = MOST * most if gradient is None else MOST_GRADIENTS * gradient
    if math.isfinite(norm) and (norm <= limit or not limit):
        return ""
    of = "the weights" if gradient is None else "the last gradient"
    return f"it has norm {norm:.3g}, and {of} {most if gradient is None else gradient:.3g}"


def _norm(vectors: Iterable[Tensor]) -> float:
    return math.sqrt(sum(squared_norm_of_sum([one.reshape(-1)]) for one in vectors))
