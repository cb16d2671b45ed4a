"""A layer goes to another node: what its node had learnt of it and not sent goes along (``delta`` mode).

The giver serves p (x - g + e) of its parameters as ``local:NAME`` while the next view is prepared; p is its weight in
its group, and g the same bits on both. The taker adds it to its own x, divided by its own weight, when the view starts:
so S = sum p x + server errors stays, also where the view is given up before it starts and another one is made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...proto import control_pb2
from ..models.definition import ModelDefinition
from ..state.stage_state import StageState
from ..state.transfer import StateFetch

if TYPE_CHECKING:
    from .steps import Training
    from .trainer import Trainer

LOCAL = "local:"
"""Prefix of the parameters' names under which it is served."""
MOST = 1.0
"""Times the norm of g: more than this is not what somebody has learnt between rounds."""


def may_be_handed_over(trainer: Trainer) -> bool:
    """Not where nobody may see a node's own update, or where one is judged before it counts."""
    updates = trainer.job.updates
    return updates.mode == "delta" and updates.agreed and not updates.secure and not updates.robust_average


def given(trainer: Trainer, view: control_pb2.View) -> dict[str, dict[str, Tensor]]:
    """What this node hands to others as the view begins, to be served: copies in main memory, fp32."""
    mine = [one for one in view.handovers if one.giver == trainer.name]
    training = trainer.previous
    if not mine or training is None or not may_be_handed_over(trainer):
        return {}
    wanted = {name for one in mine for name in _names(one, training.state, trainer.definition)}
    found: dict[str, dict[str, Tensor]] = {}
    for section_name, section in training.state.sections.items():
        share = training.exchanges[section_name].share
        local = dict(section.layout.views(section.x))
        feedback = dict(section.layout.views(section.feedback)) if section.feedback is not None else {}
        for name, reference in section.layout.views(section.g):
            if name in wanted:
                rest = local[name] - reference
                if name in feedback:
                    rest += feedback[name]
                found[LOCAL + name] = {"": rest.mul_(share).to("cpu")}
    return found


def taken(trainer: Trainer, view: control_pb2.View, new: StageState) -> dict[str, Tensor]:
    """Fetch what others hand to this node: parameter -> p (x - g + e), summed over them. What one of them can't give
    any more is lost with it, and said."""
    if not may_be_handed_over(trainer):
        return {}
    references = {name: values for one in new.sections.values() for name, values in one.layout.views(one.g)}
    fetches: dict[str, tuple[StateFetch, dict[str, Tensor]]] = {}
    for one in view.handovers:
        names = _names(one, new, trainer.definition)
        if one.taker == trainer.name != one.giver and names:
            values = {name: torch.empty_like(references[name], device="cpu") for name in names}
            fetches[one.giver] = (_fetch(trainer, one.giver, values), values)
    found: dict[str, Tensor] = {}
    while fetches:
        lost, trainer.lost = trainer.lost, set()
        for giver, (fetch, values) in list(fetches.items()):
            fetch.work(lost)
            problem = fetch.failure or (_wrong(values, references) if fetch.done else "")
            if problem:
                which = f"{len(values)} parameters that move to {trainer.name}"
                trainer.warn(giver, f"what it had learnt of {which} and not sent is lost: {problem}")
            elif fetch.done:
                for name, one_value in values.items():
                    found[name] = found[name].add_(one_value) if name in found else one_value
            if problem or fetch.done:
                del fetches[giver]
        if fetches:
            trainer.pump(0.05)
    return found


def add(training: Training, handed: Mapping[str, Tensor]) -> None:
    """The view starts: x += what was handed over / p."""
    with torch.no_grad():
        for section_name, section in training.state.sections.items():
            share = training.exchanges[section_name].share
            for name, x in section.layout.views(section.x):
                if name in handed:
                    x.add_(handed[name].to(x.device) / share)


def unsent(training: Training, layers: list[int], definition: ModelDefinition) -> tuple[list[float], float]:
    """Of each layer the norm of what this node has learnt and not sent, by its weight; and the norm g has moved."""
    squares = dict.fromkeys(layers, 0.0)
    moved = 0.0
    for section_name, section in training.state.sections.items():
        exchange = training.exchanges[section_name]
        moved += section.moved**2
        whole = sum(exchange.unsent().values(), torch.zeros(()))
        for name, values in section.layout.views(whole):
            layer = definition.layer_of(name)
            if layer in squares:
                squares[layer] += float(values.double().square().sum()) * exchange.share**2
    return [math.sqrt(one) for one in squares.values()], math.sqrt(moved)


def _names(one: control_pb2.Handover, state: StageState, definition: ModelDefinition) -> list[str]:
    """The parameters of a place that are handed over."""
    layers, tied = set(one.layers), definition.tied_trained
    names = [name for section in state.sections.values() for name in section.layout.names]
    return [name for name in names if (one.ends if name == tied else definition.layer_of(name) in layers)]


def _fetch(trainer: Trainer, giver: str, values: Mapping[str, Tensor]) -> StateFetch:
    request = next(trainer.requests)
    fetch = StateFetch(
        trainer.send,
        trainer.refuse,
        trainer.tell,
        trainer.name,
        {LOCAL + name: {"": one} for name, one in values.items()},
        {LOCAL + name: [giver] for name in values},
        False,
        progress=trainer.emit,
        request=request,
    )
    trainer.fetches[request] = fetch
    return fetch


def _wrong(values: Mapping[str, Tensor], references: Mapping[str, Tensor]) -> str:
    """Why this is nothing that a node can have learnt; empty where it can be."""
    norm, most = (
        math.sqrt(sum(float(one.double().square().sum()) for one in group))
        for group in (values.values(), [references[name] for name in values])
    )
    if math.isfinite(norm) and (norm <= MOST * most or not most):
        return ""
    return f"it has norm {norm:.3g}, and the weights {most:.3g}"
