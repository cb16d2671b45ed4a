"""Loads the frozen weights beside which adapters train: one node of each stage reads them from the model folder, the
others fetch them from that node, and a joiner from any node that holds the layer.

They are served like the reference, as ``base:NAME``, where NAME is the parameter's name in the model folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ....proto import control_pb2
from ....scheduler import Plan
from ...context import NodeContext
from ...models.lora import base_digests, load_frozen
from ...models.quantised import fill
from ...models.weights.pretrained import initial_weights, weights_of
from ..stage_state import BASE, StageState, base_of
from .traffic import StateTraffic


class BaseLoader:
    """Fills the frozen parameters of a node's places."""

    def __init__(self, traffic: StateTraffic) -> None:
        self._traffic = traffic
        self.loaded: dict[str, Tensor] = {}
        """Frozen weights from a load that a view change interrupted, by their names in the model folder."""

    def load(self, context: NodeContext, new: StageState, held: Sequence[StageState], view: control_pb2.View) -> None:
        """Fill the frozen parameters of ``new``: from the states that this node holds, else from peers that have them
        or are about to read them, else from the model folder.

        Raises:
            FarflungError: the folder cannot be read.
        """
        if not context.definition.frozen:
            return
        here = {name: values for state in held for name, values in state.base()} | self.loaded
        places = dict(new.base())
        missing = [name for name in places if name not in here]
        peers = _peers(context, new, view)
        own = [name for name in missing if not peers[name]]
        others = [name for name in missing if peers[name]]
        with torch.no_grad():
            for name in places.keys() & here.keys():
                places[name].copy_(here[name])
                self.loaded[name] = places[name]
            if view.checkpoint >= 0:  # all nodes load now: a request to one of them waits until it has loaded
                self._traffic.server.load(base_of([new]), [*(BASE + name for name in missing), *new.named()])
            self._read(context, places, own)
            self._take(context, places, {name: peers[name] for name in others})
            digests: dict[str, int] = {}
            for model in new.models:
                digests |= load_frozen(model, lambda name: places[name].detach().cpu())
        new.bases = base_digests(context.definition, new.layers, digests)

    def _read(self, context: NodeContext, places: Mapping[str, Tensor], names: Sequence[str]) -> None:
        """Read the parameters ``names`` from the model folder, through the coordinator."""
        if not names:
            return
        weights = weights_of(context.job, context.facts, context.wire.fetch)
        for name in names:
            values = initial_weights(context.definition, [name], context.job.run.seed, weights)[name]
            fill(places[name], values.float())
            self.loaded[name] = places[name]
            self._traffic.server.ready(BASE + name)
            context.wire.worked()

    def _take(self, context: NodeContext, places: Mapping[str, Tensor], peers: Mapping[str, Sequence[str]]) -> None:
        """Fetch parameters from peers; those that no peer gives, from the model folder."""
        if not peers:
            return
        wanted = {BASE + name: {"": places[name]} for name in peers}
        fetch = self._traffic.fetch(wanted, {BASE + name: nodes for name, nodes in peers.items()})
        try:
            while not fetch.done and not fetch.failure:
                fetch.work(self._traffic.take_lost())
                context.pump(0.05)
        finally:
            missing = {name.removeprefix(BASE) for name in fetch.missing}
            self.loaded |= {name: places[name] for name in peers if name not in missing}
        if missing:
            context.tell(f"the frozen weights come from the coordinator, for no peer gave them: {fetch.failure}")
            self._read(context, places, sorted(missing))
        for name in peers:
            self._traffic.server.ready(BASE + name)


def _peers(context: NodeContext, new: StageState, view: control_pb2.View) -> dict[str, list[str]]:
    """For each frozen parameter of a place, the peers to ask for it; none: this node reads it from the folder."""
    plan, found = Plan.from_json(view.plan), dict[str, list[str]]()
    holders = {holder.layer: list(holder.nodes) for holder in view.holders}
    for layer in new.layers:
        stage = next(stage for stage in range(len(plan.stages)) if layer in plan.layers_in(stage))
        has = [plan.keeper(stage)] if view.checkpoint >= 0 else holders.get(layer, [])
        for name in context.definition.frozen_names[layer]:
            if name in found:  # a parameter of two layers, as an embedding that is also the head
                continue
            others = [one for one in has if one != context.name]
            found[name] = [] if view.checkpoint >= 0 and context.name in has else others
    return found
