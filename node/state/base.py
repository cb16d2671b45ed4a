"""The frozen weights beside which adapters train: of each stage one node reads them from the model folder, the others
take them from it, and a joiner from whoever holds the layer.

They are served like the reference, as ``base:NAME``, NAME being the parameter's in the model folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...proto import control_pb2
from ...scheduler import Plan
from ..models.lora import base_digests, load_frozen
from ..models.pretrained import initial_weights, weights_of
from .stage_state import BASE, StageState, base_of
from .transfer import begin_fetch

if TYPE_CHECKING:
    from ..training.trainer import Trainer


def load_base(trainer: Trainer, new: StageState, held: Sequence[StageState], view: control_pb2.View) -> None:
    """Fill the frozen parameters of ``new``: from what this node holds, else from the peers that have them or are about
    to read them, else from the model folder.

    Raises:
        FarflungError: the folder cannot be read.
    """
    if not trainer.definition.frozen:
        return
    here = {name: values for state in held for name, values in state.base()} | trainer.base
    places = dict(new.base())
    missing = [name for name in places if name not in here]
    peers = _peers(trainer, new, view)
    own = [name for name in missing if not peers[name]]
    others = [name for name in missing if peers[name]]
    with torch.no_grad():
        for name in places.keys() & here.keys():
            places[name].copy_(here[name])
            trainer.base[name] = places[name]
        if view.checkpoint >= 0:  # everybody loads: who asks for what trains waits for that too
            trainer.server.load(base_of([new]), [*(BASE + name for name in missing), *new.named()])
        _read(trainer, places, own)
        _take(trainer, places, {name: peers[name] for name in others})
        digests: dict[str, int] = {}
        for model in new.models:
            digests |= load_frozen(model, lambda name: places[name].detach().cpu())
    new.bases = base_digests(trainer.definition, new.layers, digests)


def _read(trainer: Trainer, places: Mapping[str, Tensor], names: Sequence[str]) -> None:
    """From the model folder, over the coordinator."""
    if not names:
        return
    weights = weights_of(trainer.job, trainer.facts, trainer.wire.fetch)
    for name in names:
        values = initial_weights(trainer.definition, [name], trainer.job.run.seed, weights)[name]
        places[name].copy_(values.float())
        trainer.base[name] = places[name]
        trainer.server.ready(BASE + name)
        trainer.wire.worked()


def _take(trainer: Trainer, places: Mapping[str, Tensor], peers: Mapping[str, Sequence[str]]) -> None:
    """From peers; what none of them gives, from the model folder."""
    if not peers:
        return
    wanted = {BASE + name: {"": places[name]} for name in peers}
    fetch = begin_fetch(trainer, wanted, {BASE + name: nodes for name, nodes in peers.items()})
    try:
        while not fetch.done and not fetch.failure:
            lost, trainer.lost = trainer.lost, set()
            fetch.work(lost)
            trainer.pump(0.05)
    finally:
        missing = {name.removeprefix(BASE) for name in fetch.missing}
        trainer.base |= {name: places[name] for name in peers if name not in missing}
    if missing:
        trainer.tell(f"the frozen weights come from the coordinator, for no peer gave them: {fetch.failure}")
        _read(trainer, places, sorted(missing))
    for name in peers:
        trainer.server.ready(BASE + name)


def _peers(trainer: Trainer, new: StageState, view: control_pb2.View) -> dict[str, list[str]]:
    """Of each frozen parameter of a place who is asked for it; nobody: this node reads it from the folder."""
    plan, found = Plan.from_json(view.plan), dict[str, list[str]]()
    holders = {holder.layer: list(holder.nodes) for holder in view.holders}
    for layer in new.layers:
        stage = next(stage for stage in range(len(plan.stages)) if layer in plan.layers_in(stage))
        has = [plan.keeper(stage)] if view.checkpoint >= 0 else holders.get(layer, [])
        for name in trainer.definition.frozen_names[layer]:
            if name in found:  # of two layers, as an embedding that is the head too
                continue
            others = [one for one in has if one != trainer.name]
            found[name] = [] if view.checkpoint >= 0 and trainer.name in has else others
    return found
