"""How a node that takes up a place gets the reference: from its own states, peers, a checkpoint, a model folder or the
seed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from ....proto import control_pb2
from ....proto.errors import FarflungError
from ....scheduler.plans import Plan
from ...context import NodeContext
from ...ipc.arena import release_freed_memory
from ...models.magnitude import first_magnitudes
from ...models.weights.fetch import Fetch
from ...models.weights.pretrained import initial_weights, weights_of
from ...state.files.checkpoint import Checkpoint, load_checkpoint
from ...state.sections.room import leave
from ...state.sections.section import Section
from ...state.stage_state import REFERENCE, StageState, base_of, share_of
from ...state.transfers.fetching import StateFetch
from ...state.transfers.parameter_bytes import named
from ...state.transfers.traffic import StateTraffic

Holders = Callable[[str], Sequence[str]]
"""``holders(name)``: the nodes that have a parameter's reference."""


@dataclass
class Loading:
    """A load of the checkpoint of step ``checkpoint`` (0: of the initial weights) that is under way or was interrupted
    by a view change. The parameters ``loaded`` of ``state`` are complete."""

    checkpoint: int
    state: StageState
    loaded: set[str]


class StateLoader:
    """Fills the states of a node's places, one after the other."""

    def __init__(self, traffic: StateTraffic, read: Fetch, own_loop: bool) -> None:
        """``read``: reads bytes of the coordinator's artifacts. ``own_loop``: members bring models of their own."""
        self._traffic, self._read, self._own_loop = traffic, read, own_loop
        self.loading: Loading | None = None
        """A load that is under way, or that a view change interrupted."""

    def load(self, context: NodeContext, new: StageState, held: Sequence[StageState], view: control_pb2.View) -> None:
        """Fill ``new`` with the reference at the view's start, and set x := g. For parameters that this node held in
        another place, x - g, the error feedback and (in delta mode) the moments are kept.

        Raises:
            FarflungError: a checkpoint or the initial weights cannot be read, or no holder answers.
        """
        names = [name for section in new.sections.values() for name in section.layout.names]
        first = Plan.from_json(view.plan).nodes[0]
        with torch.no_grad():
            if view.checkpoint > 0:
                self._from_checkpoint(context, new, view, names)
            elif view.checkpoint == 0 and self._own_loop and first != context.name:
                # Models that members bring have different initial weights: all nodes take those of the first node.
                self._fetch(context, new, names, lambda name: [first], step=view.step)
            elif (
                view.checkpoint == 0
                and context.job.model.pretrained is not None
                and context.definition.starts_from_folder
            ):
                self._from_folder(context, new, view, names)
            elif view.checkpoint == 0:  # adapters too, where nothing beside them trains: a model folder has none
                _from_seed(context, new)
            else:
                self._from_holders(context, new, held, view)
                new.adopt()
            for section in new.sections.values():
                section.adopt()
                section.begins()
            if view.checkpoint < 0:
                self._carry(context, new, held, view)

    def _from_checkpoint(
        self, context: NodeContext, new: StageState, view: control_pb2.View, names: Sequence[str]
    ) -> None:
        checkpoint = Checkpoint(view.checkpoint, self._read)

        def load(name: str) -> None:
            load_checkpoint(new, checkpoint, [name])

        self._once_a_stage(context, new, view, names, load, new.moments_travel)
        load_checkpoint(new, checkpoint, [])

    def _from_folder(self, context: NodeContext, new: StageState, view: control_pb2.View, names: Sequence[str]) -> None:
        """Load the weights of the job's model folder."""
        places = {name: vectors[""] for name, vectors in new.named().items()}
        weights, magnitudes = None, first_magnitudes(new.models)

        def load(name: str) -> None:
            nonlocal weights
            if name in magnitudes:
                places[name].copy_(magnitudes[name])
                leave(places[name])
                return
            if weights is None:  # a node that fetches all from peers reads nothing of the folder
                weights = weights_of(context.job, context.facts, self._read)
            places[name].copy_(initial_weights(context.definition, [name], context.job.run.seed, weights)[name])
            leave(places[name])

        self._once_a_stage(context, new, view, names, load, moments=False)
        context.definition.forget()
        release_freed_memory()

    def _once_a_stage(
        self,
        context: NodeContext,
        new: StageState,
        view: control_pb2.View,
        names: Sequence[str],
        load: Callable[[str], None],
        moments: bool,
    ) -> None:
        """Load these parameters: the stage's keeper from the coordinator, the others of its group from the keeper.

        So the coordinator sends each stage once. Each parameter is passed on as soon as it has come. Parameters of a
        load that a view change interrupted are not loaded again.
        """
        plan, server = Plan.from_json(view.plan), self._traffic.server
        before, loaded = self.loading, set[str]()
        if before is not None:
            loaded = before.loaded.intersection(names)
            if before.state is not new:
                _copy(before.state, new, loaded)
        self.loading = Loading(view.checkpoint, new, loaded)
        from_whom = {name: plan.keeper(_stage_of(plan, context.definition.layer_of(name))) for name in names}
        missing = [name for name in names if name not in loaded]
        others = [name for name in missing if from_whom[name] != context.name]
        server.load(named([new]) | base_of([new]), missing)
        for name in missing:
            if from_whom[name] == context.name:
                load(name)
                loaded.add(name)
                server.ready(name)
                context.wire.worked()
        if others:
            fetch = fetch_of(context, self._traffic, new, others, lambda name: [from_whom[name]], moments=moments)
            try:
                self._traffic.finish(fetch)
            finally:
                loaded.update(set(others) - fetch.missing)
        for name in others:
            server.ready(name)
        self.loading = None

    def _from_holders(
        self, context: NodeContext, new: StageState, held: Sequence[StageState], view: control_pb2.View
    ) -> None:
        """Copy the parameters that this node has, and fetch the others from their holders."""
        here = named(held)
        missing = []
        for name, vectors in new.named().items():
            if name in here:
                for prefix, values in vectors.items():
                    values.copy_(here[name][prefix])
                    leave(values, here[name][prefix])
            else:
                missing.append(name)
        self._fetch(context, new, missing, _holders(context, view), step=view.step)

    def _carry(self, context: NodeContext, new: StageState, held: Sequence[StageState], view: control_pb2.View) -> None:
        """Keep the local part (x - g, error feedback, moments) of every parameter that this node held in another place.
        Moments of parameters that are new to it come from a peer, because one step count applies to all moments; if
        moments are private, all moments are reset instead."""
        new.loss_scale = next((state.loss_scale for state in held), new.loss_scale)
        lacking = _carry_local(context, new, held, Plan.from_json(view.plan))
        new.lacking = frozenset(lacking)
        steps = max((state.optimizer_steps for state in held), default=0)
        if new.gradient or len(lacking) == len(new.named()):
            return  # the moments are the group's, or all parameters are new, as for a joiner
        if lacking and not new.moments_travel:
            for section in new.sections.values():
                for moment in section.moments.values():
                    moment.zero_()
            return
        new.optimizer_steps = steps
        if lacking and steps:
            holders = _holders(context, view)
            self._fetch(context, new, lacking, lambda name: holders(name)[:1], step=view.step, moments_only=True)

    def _fetch(
        self,
        context: NodeContext,
        new: StageState,
        names: Sequence[str],
        holders: Holders,
        *,
        step: int,
        moments_only: bool = False,
    ) -> None:
        """Fill these parameters of ``new``, as they are after ``step``, from peers. FarflungError: none of the holders
        answers."""
        fetch = fetch_of(context, self._traffic, new, names, holders, moments_only=moments_only)
        self._traffic.finish(fetch)
        if new.loss_scale is not None and fetch.loss_scale is not None and not moments_only:
            new.loss_scale = fetch.loss_scale.possible(step, context.job.train.loss_scale_steps)


def _from_seed(context: NodeContext, new: StageState) -> None:
    """Set the initial weights of a run without a model folder."""
    magnitudes = first_magnitudes(new.models)
    for name, prefix, values in new.tensors():
        if not prefix and name in magnitudes:
            values.copy_(magnitudes[name])
        elif not prefix:
            values.copy_(initial_weights(context.definition, [name], context.job.run.seed)[name])
        leave(values)
    context.definition.forget()
    release_freed_memory()


def _copy(source: StageState, target: StageState, names: Collection[str]) -> None:
    here = source.named()
    for name, vectors in target.named().items():
        for prefix, values in vectors.items() if name in names else ():
            values.copy_(here[name][prefix])
            leave(values, here[name][prefix])


def _stage_of(plan: Plan, layer: int) -> int:
    return next(stage for stage, (first, last) in enumerate(plan.stages) if first <= layer <= last)


def _holders(context: NodeContext, view: control_pb2.View) -> Holders:
    holders = {holder.layer: list(holder.nodes) for holder in view.holders}
    return lambda name: holders.get(context.definition.layer_of(name), [])


def _carry_local(context: NodeContext, new: StageState, held: Sequence[StageState], plan: Plan) -> list[str]:
    """Move the local part of parameters that are held into ``new``. Returns the names of parameters that are not
    held."""
    agreed = context.job.updates.agreed and not new.gradient
    old: dict[str, tuple[Section, slice]] = {}
    moments: dict[tuple[str, str], torch.Tensor] = {}  # by kind and parameter
    for section in (section for state in held for section in state.sections.values()):
        for name, here in section.layout.slices():
            old.setdefault(name, (section, here))
        for kind, vector in section.moments.items():
            for name, values in section.of_moments.views(vector):
                moments.setdefault((kind, name), values)
    lacking: list[str] = []
    for section_name, section in new.sections.items():
        weight = share_of(plan, section_name, context.name) if agreed else 0.0
        for name, here in section.layout.slices():
            if name not in old:
                lacking.append(name)
                continue
            source, there = old[name]
            section.x[here] = source.x[there]
            factor = source.weight / weight if source.weight and weight else 1.0  # sections may have different weights
            if factor != 1.0:
                section.x[here].sub_(section.g[here]).mul_(factor).add_(section.g[here])
            if source.feedback is not None:
                with section.feeding(here) as fed:
                    fed.copy_(source.feedback[there].float() * factor)
            source.leave()
        for kind, vector in section.moments.items():
            for name, values in section.of_moments.views(vector):
                if name in old:
                    values.copy_(moments[kind, name])
                    leave(moments[kind, name])
        section.leave()
        section.weight = weight
    return lacking


def fetch_of(
    context: NodeContext,
    traffic: StateTraffic,
    new: StageState,
    names: Sequence[str],
    holders: Holders,
    *,
    snapshot: int = 0,
    moments_only: bool = False,
    moments: bool | None = None,
    kept: bool = False,
) -> StateFetch:
    """Begin a fetch of the parameters ``names`` of ``new``. FarflungError: the view names no holder of one.
    ``moments_only``: the reference is here already, so that of the answer is dropped."""
    found = {name: [node for node in holders(name) if node != context.name] for name in names}
    for name, nodes in found.items():
        if not nodes:
            raise FarflungError(
                f"no node of this view holds {name}", "this is a fault of the view; please report it", 4
            )
    moments = new.gradient or moments_only if moments is None else moments  # a checkpoint's moments are common
    # In delta mode a peer's moments belong to its own trajectory; a joiner's start at zero, with bias correction.
    wanted: Mapping[str, Mapping[str, torch.Tensor]] = {
        name: {
            prefix: torch.empty_like(values) if moments_only and prefix in REFERENCE else values
            for prefix, values in vectors.items()
            if moments or prefix in REFERENCE
        }
        for name, vectors in new.named().items()
        if name in found
    }
    return traffic.fetch(wanted, found, moments, snapshot, kept)
