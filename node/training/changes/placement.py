"""A node's place in a view: the stages that it holds as a member, or the place that it follows as a spare."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import torch

from ....job.data.sampling import Position
from ....proto import control_pb2
from ....proto.errors import FarflungError
from ....scheduler import Plan
from ....scheduler.workloads.jobs import moment_bytes
from ....scheduler.workloads.offload import MOMENTS, NONE
from ...context import NodeContext
from ...promises import Broken
from ...state.files.rests import contribute
from ...state.stage_state import StageState
from ...state.transfers.base import BaseLoader
from ...state.transfers.parameter_bytes import named
from ...state.transfers.serving import Snapshot
from ..following.standby import Follower
from ..holdings import Holdings
from ..say_again import Unanswered
from .take_up import StateLoader, fetch_of


class Placement:
    """Sets up one node's place in each view."""

    def __init__(self, holdings: Holdings, loader: StateLoader, said: Unanswered) -> None:
        """``loader``: fills states with the reference. ``said``: repeats reports until the coordinator has acted."""
        self._holdings, self._loader, self._said = holdings, loader, said
        self.base = BaseLoader(holdings.traffic)
        self.unfollowed: StageState | None = None
        """The state of the place that this node followed as a spare until that failed."""
        self.cannot_follow = ""
        """Why this spare cannot follow the place that the view gives it to follow; empty if it can."""
        self._held_before = False
        """Whether this node has ever taken up a place."""

    @property
    def _context(self) -> NodeContext:
        return self._holdings.context

    def place(self, view: control_pb2.View, plan: Plan, held: Sequence[StageState]) -> StageState:
        """The state of this node's place: the present one if the place is the same, else a new one, filled."""
        context, loading = self._context, self._loader.loading
        begun = [loading.state] if loading is not None else []  # an interrupted load of the same checkpoint
        resources = self._holdings.resources
        keeps_on, shared = resources.keeps_on(context, plan), resources.in_pieces(context, plan)
        where = (keeps_on, shared, context.job.train.offload_kind)
        held_there, begun_there = ([one for one in states if one.is_on(*where)] for states in (held, begun))
        new = next((one for one in held_there if one.same_place(context.definition, plan, context.name)), None)
        if new is not None:
            if context.job.train.offload_kind == MOMENTS:  # the device has room for them when the view has started
                new.move_moments(MOMENTS)
            return new
        new = next((one for one in begun_there if one.same_place(context.definition, plan, context.name)), None)
        new = new or self.take_up(plan, context.name, [*held, *begun], view)
        self._loader.load(context, new, held, view)
        if context.name in view.restores:
            self._contribute(view, plan, new)
        return new

    def take_up(self, plan: Plan, place: str, held: Sequence[StageState], view: control_pb2.View) -> StageState:
        """A new state for ``place``, without values of the trained parameters. Broken: it needs too much memory."""
        context, resources = self._context, self._holdings.resources
        optimizer, job = resources.optimizer, context.job
        of_weights = moment_bytes(job.train.model_dump(), job.model.model_dump().get("lora")) / 4
        vectors = of_weights if optimizer.factored else len(optimizer.moments)
        shared = resources.in_pieces(context, plan)
        folder = folder_of_moments(resources.owner.offload_folder, job.train.offload_kind, shared)
        in_files = folder is not None and job.train.offload_kind != NONE
        must_fit(context, resources.owner.limits.memory, 0.0 if in_files else vectors, plan, place)
        if self._held_before:
            gc.collect()  # free the earlier place, which is as large and has reference cycles
        self._held_before = True
        new = StageState(
            context.definition,
            context.job,
            plan,
            place,
            resources.optimizer,
            resources.keeps_on(context, plan),
            shared=shared,
            folder=folder,
            computes_on=resources.computes_on(context),
        )
        self.base.load(context, new, held, view)
        return new

    def _contribute(self, view: control_pb2.View, plan: Plan, new: StageState) -> None:
        """Take up the rest that this node kept beside the checkpoint with which the view begins."""
        context, rests = self._context, self._holdings.resources.rests
        rest = rests.read(view.checkpoint, view.kept_in) if rests is not None else None
        if rest is None:
            why = f"what it kept beside the checkpoint of step {view.checkpoint} is damaged, and lost"
            context.warn(context.name, why)
            return
        with torch.no_grad():
            lost = contribute(rest, new, plan, context.name)
        if lost:
            part = f"{lost / rest.norm:.1%} of what it had learnt beside the checkpoint of step {view.checkpoint}"
            why = f"{part} is lost: it was of parameters, or of weights, that its place does not have"
            context.warn(context.name, why)

    def keep_snapshots(self, view: control_pb2.View, plan: Plan, new: StageState) -> None:
        """Keep earlier snapshots that spares still fetch, and make one of this view for spares that have none."""
        snapshots, mine = self._holdings.traffic.snapshots, plan.stages_of(self._context.name)
        fetch = {one.node for one in view.shadows if one.fetch and plan.stages_of(one.like) == mine}
        for number, kept in list(snapshots.items()):
            kept.wanted_by &= fetch
            fetch -= kept.wanted_by
            if not kept.wanted_by:
                del snapshots[number]
        if fetch:  # spares may ask before this node has started
            snapshots[view.number] = Snapshot(named([new]), fetch, new.loss_scale)

    # ---- a spare -------------------------------------------------------------------------------

    def follow(
        self, view: control_pb2.View, plan: Plan, position: Position, round: int, held: list[StageState]
    ) -> Follower | None:
        """For a spare: follow the place that the view gives it to follow, from its present state or from a snapshot."""
        context, follower = self._context, self._holdings.follower
        mine = next((one for one in view.shadows if one.node == context.name), None)
        if mine is None:
            return None
        guides = [name for name in plan.nodes if plan.stages_of(name) == plan.stages_of(mine.like)]
        first = sum(context.name.encode()) % len(guides)
        if follower is None or follower.failed or not follower.state.same_place(context.definition, plan, mine.like):
            try:
                follower = self._new_follower(view, plan, mine, guides, held)
            except FarflungError as error:
                self.cannot_follow = error.message  # reported when the view trains
                return None
        follower.enter(context, plan, mine.like, position, round, guides[first:] + guides[:first])
        self._holdings.state = follower.state if follower.whole else None
        return follower

    def _new_follower(
        self,
        view: control_pb2.View,
        plan: Plan,
        mine: control_pb2.Shadow,
        guides: Sequence[str],
        held: Sequence[StageState],
    ) -> Follower:
        context, holdings = self._context, self._holdings
        kept = next((state for state in held if state.same_place(context.definition, plan, mine.like)), None)
        if kept is not None and not mine.fetch:
            return Follower(holdings.resources, holdings.traffic, kept, None, self.caught_up)
        # The state of an attempt that failed: pieces that are unchanged since are not fetched again.
        before, self.unfollowed = self.unfollowed, None
        again = before is not None and before.same_place(context.definition, plan, mine.like)
        new = before if again and before is not None else self.take_up(plan, mine.like, held, view)
        names = list(new.named())
        fetch = fetch_of(context, holdings.traffic, new, names, lambda _: guides, snapshot=view.number, kept=again)
        return Follower(holdings.resources, holdings.traffic, new, fetch, self.caught_up)

    def tell_of_what_it_cannot_follow(self) -> None:
        """The view trains: if this spare cannot follow its place, report why."""
        if self.cannot_follow:
            self.caught_up(self.cannot_follow)

    def caught_up(self, failed: str) -> None:
        """Tell the coordinator that this spare has the group's state, or, with ``failed``, why it cannot follow."""
        if failed:
            self._context.tell(f"does not follow a stage: {failed}")
        caught_up = control_pb2.CaughtUp(view=self._context.view, failed=failed)
        self._said.say(control_pb2.Report(caught_up=caught_up))


def folder_of_moments(named: Path | None, offload: str, shared: bool) -> Path | None:
    """The folder in which the moments lie where they are offloaded, of the one that the owner has ``named``; None: in
    memory. FarflungError: an island's processes share them (``shared``)."""
    if named is None or (shared and offload == NONE):
        return None
    if shared:
        raise FarflungError(
            "the moments of an island whose devices hold pieces lie in memory that its processes share, not in a file "
            f"in {named}",
            "join without --offload-folder, or without --island",
        )
    return named


def must_fit(context: NodeContext, limit: int, moments: float, plan: Plan, place: str) -> None:
    """Broken if the owner allows less of the device's memory (``limit``, bytes; 0: no limit) than a place's weights,
    gradients and moments need there. ``moments``: the number of vectors as long as the weights that the optimiser
    keeps."""
    if not limit:
        return
    job = context.job
    ranges = [plan.stages[stage] for stage in plan.stages_of(place)]
    held = [layer for first, last in ranges for layer in context.facts.profile.layers[first : last + 1]]
    outer = bool(job.updates.outer_optimizer.momentum)
    moment = 0.5 if job.train.moments == "bf16" else 1.0
    beside, kind = context.device.type != "cpu", job.train.offload_kind
    moments = 0.0 if beside and kind != "none" else moments
    copies = 2 + (job.updates.mode == "delta") + outer + moment * moments
    if beside and kind in ("optimizer", "parameters"):
        copies = 1.0
    needed = sum(layer.parameters * copies + layer.frozen for layer in held) * 4
    if needed > limit:
        raise Broken(
            f"view {context.view} is refused: its layers need {needed / 1e9:.3g} GB, "
            f"and --max-memory allows {limit / 1e9:.3g} GB",
            "allow more, or let more nodes join, so that each holds less",
        )
