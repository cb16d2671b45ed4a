"""How a node that takes up a place gets its reference: from itself, from peers, from a checkpoint, or from the seed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from ....proto import control_pb2
from ....proto.errors import FarflungError
from ....scheduler.plans import Plan
from ...context import NodeContext
from ...ipc.arena import release_freed_memory
from ...models.weights.fetch import Fetch
from ...models.weights.pretrained import Weights, initial_weights, weights_of
from ...state.files.checkpoint import Checkpoint, load_checkpoint
from ...state.sections.section import Section
from ...state.stage_state import REFERENCE, StageState, base_of, share_of
from ...state.transfers.fetching import StateFetch
from ...state.transfers.parameter_bytes import named
from ...state.transfers.traffic import StateTraffic

Holders = Callable[[str], Sequence[str]]
"""Who has a parameter's reference."""


@dataclass
class Loading:
    """A load of a checkpoint's step (0: of the weights to begin with) that is under way, or was broken off by a view
    change: ``loaded`` parameters of ``state`` are whole."""

    checkpoint: int
    state: StageState
    loaded: set[str]


class StateLoader:
    """Fills the states of a node's places, one after the other."""

    def __init__(self, traffic: StateTraffic, read: Fetch, own_loop: bool) -> None:
        """``read``: bytes of an artifact of the coordinator's. ``own_loop``: members bring models of their own."""
        self._traffic, self._read, self._own_loop = traffic, read, own_loop
        self.loading: Loading | None = None
        """A load that is under way, or that a view change broke off."""

    def load(self, context: NodeContext, new: StageState, held: Sequence[StageState], view: control_pb2.View) -> None:
        """Fill ``new`` with the reference at the view's start, and set x := g; where this node held a parameter in
        another place, x, error feedback and (in delta mode) moments stay what they were.

        Raises:
            FarflungError: a checkpoint or the initial weights cannot be read, or no holder answers.
        """
        names = [name for section in new.sections.values() for name in section.layout.names]
        first = Plan.from_json(view.plan).nodes[0]
        with torch.no_grad():
            if view.checkpoint > 0:
                self._from_checkpoint(context, new, view, names)
            elif view.checkpoint == 0 and self._own_loop and first != context.name:
                # Models that members bring begin with other weights in each: everybody takes those of the first.
                self._fetch(context, new, names, lambda name: [first])
            elif (
                view.checkpoint == 0
                and context.job.model.pretrained is not None
                and context.definition.starts_from_folder
            ):
                self._from_folder(context, new, view, names)
            elif view.checkpoint == 0:  # adapters too: no folder has any
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
        """The weights of the job's model folder."""
        places = {name: vectors[""] for name, vectors in new.named().items()}
        weights: Weights | None = None

        def load(name: str) -> None:
            nonlocal weights
            if weights is None:  # who takes everything from another reads nothing of the folder
                weights = weights_of(context.job, context.facts, self._read)
            places[name].copy_(initial_weights(context.definition, [name], context.job.run.seed, weights)[name])

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
        """Load these parameters: the node that keeps a stage's file from the coordinator, the others of its group from
        it.

        So the coordinator sends each stage once. Parameters go on as they come: nobody waits for the whole of a stage.
        What is here of a load that a view change broke off is not loaded again.
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
        """Copy what this node has, ask holders for the rest."""
        here = named(held)
        missing = []
        for name, vectors in new.named().items():
            if name in here:
                for prefix, values in vectors.items():
                    values.copy_(here[name][prefix])
            else:
                missing.append(name)
        self._fetch(context, new, missing, _holders(context, view))

    def _carry(self, context: NodeContext, new: StageState, held: Sequence[StageState], view: control_pb2.View) -> None:
        """The local part of every parameter that this node held in another place goes with it. Of what is new to it the
        moments are one peer's, for they count as many steps as its own; or, where moments are private, all begin
        anew."""
        lacking = _carry_local(context, new, held, Plan.from_json(view.plan))
        new.lacking = frozenset(lacking)
        steps = max((state.optimizer_steps for state in held), default=0)
        if new.gradient or len(lacking) == len(new.named()):
            return  # its moments are the group's; or nothing of it is old: as a joiner begins
        if lacking and not new.moments_travel:
            for section in new.sections.values():
                for moment in section.moments.values():
                    moment.zero_()
            return
        new.optimizer_steps = steps
        if lacking and steps:
            holders = _holders(context, view)
            self._fetch(context, new, lacking, lambda name: holders(name)[:1], moments_only=True)

    def _fetch(
        self,
        context: NodeContext,
        new: StageState,
        names: Sequence[str],
        holders: Holders,
        moments_only: bool = False,
    ) -> None:
        """Fill these parameters of ``new`` from peers. FarflungError: none of the holders answers."""
        fetch = fetch_of(context, self._traffic, new, names, holders, moments_only=moments_only)
        self._traffic.finish(fetch)


def _from_seed(context: NodeContext, new: StageState) -> None:
    """The weights that a run begins with where there are none of a folder."""
    for name, prefix, values in new.tensors():
        if not prefix:
            values.copy_(initial_weights(context.definition, [name], context.job.run.seed)[name])
    context.definition.forget()
    release_freed_memory()


def _copy(source: StageState, target: StageState, names: Collection[str]) -> None:
    here = source.named()
    for name, vectors in target.named().items():
        for prefix, values in vectors.items() if name in names else ():
            values.copy_(here[name][prefix])


def _stage_of(plan: Plan, layer: int) -> int:
    return next(stage for stage, (first, last) in enumerate(plan.stages) if first <= layer <= last)


def _holders(context: NodeContext, view: control_pb2.View) -> Holders:
    holders = {holder.layer: list(holder.nodes) for holder in view.holders}
    return lambda name: holders.get(context.definition.layer_of(name), [])


def _carry_local(context: NodeContext, new: StageState, held: Sequence[StageState], plan: Plan) -> list[str]:
    """Move the local part of parameters that are held into ``new``; the names of those that are new to this node."""
    agreed = context.job.updates.agreed and not new.gradient
    old: dict[str, tuple[Section, slice]] = {}
    for section in (section for state in held for section in state.sections.values()):
        layout = section.layout
        for name, start, stop in zip(layout.names, layout.offsets, layout.offsets[1:], strict=False):
            old.setdefault(name, (section, slice(start, stop)))
    lacking: list[str] = []
    for section_name, section in new.sections.items():
        layout = section.layout
        weight = share_of(plan, section_name, context.name) if agreed else 0.0
        for name, start, stop in zip(layout.names, layout.offsets, layout.offsets[1:], strict=False):
            here = slice(start, stop)
            if name not in old:
                lacking.append(name)
                continue
            source, there = old[name]
            section.x[here] = source.x[there]
            factor = source.weight / weight if source.weight and weight else 1.0  # sections differ in it
            if factor != 1.0:
                section.x[here].sub_(section.g[here]).mul_(factor).add_(section.g[here])
            if source.feedback is not None:
                if section.feedback is None:
                    section.feedback = torch.zeros_like(section.g)
                section.feedback[here] = source.feedback[there] * factor
            for kind, vector in section.moments.items():
                vector[here] = source.moments[kind][there]
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
    """The fetch of these parameters of ``new``. FarflungError: somebody's view says that nobody holds one.
    ``moments_only``: the reference is here, and what comes of it is left."""
    found = {name: [node for node in holders(name) if node != context.name] for name in names}
    for name, nodes in found.items():
        if not nodes:
            raise FarflungError(
                f"no node of this view holds {name}", "this is a fault of the view; please report it", 4
            )
    moments = new.gradient or moments_only if moments is None else moments  # of a checkpoint they are nobody's own
    # In delta mode a peer's moments belong to the peer's own path; a joiner's begin anew, and bias correction is
    # their ramp.
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
