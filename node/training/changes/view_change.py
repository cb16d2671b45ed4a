"""From one view to the next: report how far the old one got, finish what it agreed on, take up the new place.

The next view change may interrupt this one at any moment (`ViewEnds`); no shared state changes before the view starts,
so there is nothing to undo.
"""

from __future__ import annotations

import gc
import os
from dataclasses import replace

import torch
from torch import Tensor

from ....job.chosen import with_chosen
from ....job.data.sampling import Position, of_runs
from ....job.schema import Job
from ....proto import control_pb2
from ....proto.errors import RunFailed
from ....scheduler import Plan
from ...context import NodeContext
from ...device.probe import usable_cores
from ...ipc.arena import release_freed_memory
from ...models.weights.fetch import Fetch
from ...promises import Promises
from ...rounds.checking.signed import Signer
from ...state.stage_state import StageState, base_of
from ...state.transfers.parameter_bytes import frozen, named
from ...wire.needed_links import needed_links
from ..holdings import Holdings
from ..member.view_member import ViewStart
from ..resources import aqsgd_ends
from ..say_again import Unanswered
from ..steps.view_training import ViewTraining
from .handover import add, given, taken, weigh
from .old_view import catch_up, compare_histories, how_far
from .placement import Placement
from .take_up import StateLoader


class ViewChange:
    """One node's way from view to view: ``flush`` the old one, ``prepare`` the new one, ``start`` it."""

    def __init__(self, holdings: Holdings, said: Unanswered, read: Fetch, promises: Promises | None = None) -> None:
        """``said``: repeats reports until the coordinator has acted. ``read``: reads bytes of the coordinator's
        artifacts. ``promises``: check every view; None: the coordinator is trusted."""
        self._holdings, self._said, self._promises = holdings, said, promises
        self.loader = StateLoader(holdings.traffic, read, holdings.resources.own is not None)
        self.placement = Placement(holdings, self.loader, said)
        self._handed: dict[str, Tensor] = {}
        """The residuals that other nodes have handed over, kept until the view starts."""

    @property
    def _context(self) -> NodeContext:
        return self._holdings.context

    # ---- the old view ----------------------------------------------------------------------

    def flush(self, flush: control_pb2.Flush, had_started: bool) -> None:
        """Stop; from now on no message of the old view is sent, and the answer reports how far this node got.
        ``had_started``: the view had started, although this node has not handled its start."""
        holdings = self._holdings
        self._context.wire.leave_view()
        if had_started:
            self._take_over()  # the givers have dropped what they handed over
        self._handed = {}
        if holdings.training is not None:
            holdings.training.texts.clear()
            holdings.training.mode.finish_committed()
        holdings.begun_at = holdings.step
        if holdings.training is not None and holdings.training.started:
            holdings.previous = holdings.training  # if a view never started, the one before is to be finished
        holdings.training = None
        if holdings.follower is not None:
            holdings.state = holdings.follower.state if holdings.follower.whole else None
        self._said.say(control_pb2.Report(flushed=how_far(holdings, flush.view)))

    # ---- the new view ----------------------------------------------------------------------

    def prepare(self, view: control_pb2.View) -> None:
        """Take up the place that the view gives this node, with all its state, and report that this node is prepared.

        Raises:
            Broken: the view breaks a promise, or needs more memory than the owner allows.
            Unreadable: a file of the checkpoint with which the view begins cannot be used.
            FarflungError: the state cannot be loaded.
        """
        holdings = self._holdings
        plan = self._enter(view)
        if self.loader.loading is not None and self.loader.loading.checkpoint != view.checkpoint:
            self.loader.loading = None
        if view.checkpoint >= 0:
            self._go_back(view.checkpoint)
        self._catch_up(view)
        compare_histories(holdings, view)
        holdings.begun_at = view.step
        held = holdings.held
        # No node holds state yet: requests wait until parameters are loaded, or for the first node's own weights.
        begins = view.checkpoint >= 0
        server = holdings.traffic.server
        if not begins:
            before = holdings.previous.view if holdings.previous is not None else None
            scale = held[0].loss_scale if held else None
            server.open(named(held) | base_of(held) | given(self._context.job, before, view), scale)
        new = self.placement.place(view, plan, held) if self._context.name in plan.nodes else None
        if begins:
            states = [new] if new is not None else []
            server.open(named(states) | base_of(states))
        position = position_of(view)
        round = max((state.round for state in view.sections), default=0)
        if new is not None:
            for section in new.sections.values():
                section.restart_chain(view.number, round)
            new.obey(plan)
            start = self._start_of(view, plan, position)
            holdings.training = ViewTraining(self._context, holdings.resources, new, start)
            self.placement.keep_snapshots(view, plan, new)
        # Until all nodes are prepared, peers of this or the next view may ask for the state that this node held before.
        # Of several states keep the one that has trained: those of views that never started have no residuals.
        holdings.kept = next((state for state in reversed(held) if state is not new), None)
        holdings.state = new
        if new is not None:
            self._handed = taken(self._context, holdings.traffic, view, new)
        self.placement.cannot_follow = ""
        holdings.follower = self.placement.follow(view, plan, position, round, held) if new is None else None
        self.placement.unfollowed = None
        self._say_prepared(view, new)

    def _enter(self, view: control_pb2.View) -> Plan:
        """Use the view's members, job and plan from now on. Broken: the view breaks a promise."""
        holdings = self._holdings
        plan, job = read_view(view, self._promises)
        before = holdings.context
        if plan.chosen:
            job = with_chosen(job or before.job, plan.chosen)
        if job is None:
            holdings.context = replace(before, view=view.number)
        else:
            if job.activations.forward != before.job.activations.forward:
                ends = aqsgd_ends(job, before.facts, holdings.resources.owner)
                holdings.resources = replace(holdings.resources, ends=ends)
            facts = before.facts.model_copy(update={"steps": job.steps(before.facts.samples)})
            holdings.context = replace(before, view=view.number, job=job, facts=facts)
        holdings.traffic.take_lost()
        holdings.traffic.serve_anew()
        holdings.context.wire.enter(view.number, view.members, self._needed(view, plan))
        self.share_cores(view)
        return plan

    def _start_of(self, view: control_pb2.View, plan: Plan, position: Position) -> ViewStart:
        identity = self._context.wire.identity
        sessions = {member.name: member.session for member in view.members}
        signer = None if identity is None else Signer(identity, view.number, sessions)
        followed = frozenset(stage for one in view.shadows for stage in plan.stages_of(one.like))
        return ViewStart(plan, position, view.save, view.evaluate, followed, signer)

    def _go_back(self, checkpoint: int) -> None:
        """The run goes back to a checkpoint: drop all state that this node holds."""
        holdings = self._holdings
        holdings.drop_states()
        holdings.follower = None
        holdings.traffic.snapshots.clear()
        if holdings.resources.rests is not None:
            holdings.resources.rests.forget_after(checkpoint)

    def _say_prepared(self, view: control_pb2.View, new: StageState | None) -> None:
        prepared = control_pb2.Prepared(view=view.number)
        if new is not None:
            prepared.fingerprints.extend(self.fingerprints())
        follower = self._holdings.follower
        place = follower.state if follower is not None else new
        if place is not None:
            prepared.bases.extend(control_pb2.Base(layer=layer, content=one) for layer, one in place.bases.items())
        self._said.say(control_pb2.Report(prepared=prepared))

    def fingerprints(self) -> list[control_pb2.Fingerprint]:
        """The fingerprint of the reference of every section that this node holds."""
        state = self._holdings.state
        assert state is not None
        gradient = self._context.job.updates.mode == "gradient"
        return [
            control_pb2.Fingerprint(section=name, round=section.round, content=section.fingerprint(gradient))
            for name, section in state.sections.items()
        ]

    def _needed(self, view: control_pb2.View, plan: Plan) -> set[str]:
        """The members with which this node exchanges messages in the view, or finishes the one before."""
        context, previous = self._context, self._holdings.previous
        names = [member.name for member in view.members]
        holders = {holder.layer: list(holder.nodes) for holder in view.holders}
        shadows = [(one.node, one.like) for one in view.shadows]
        committer = plan.nodes[0] if context.job.updates.mode == "gradient" else ""
        first = plan.nodes[0] if view.checkpoint == 0 and self._holdings.resources.own is not None else ""
        tied = context.definition.tied_trained is not None
        found = needed_links(plan, names, holders, shadows, context.name, committer=committer, first=first, tied=tied)
        if previous is not None:
            found |= needed_links(previous.view.plan, names, {}, [], context.name, committer="", tied=tied)
        return found

    def share_cores(self, view: control_pb2.View) -> None:
        """Divide the cores of a machine among its nodes: with more threads than cores, waiting threads make computation
        100 times slower."""
        if self._context.device.type != "cpu" or "OMP_NUM_THREADS" in os.environ:
            return
        hosts = {member.name: member.address.rpartition(":")[0] for member in view.members}
        together = sum(host == hosts.get(self._context.name) for host in hosts.values())
        island = self._holdings.resources.island
        together *= island.ranks if island else 1
        torch.set_num_threads(max(1, usable_cores() // max(1, together)))

    def _catch_up(self, view: control_pb2.View) -> None:
        """Finish what the old view agreed on."""
        unfollowed = catch_up(self._holdings, view)
        if unfollowed is not None:
            self.placement.unfollowed = unfollowed

    # ---- the start -----------------------------------------------------------------------------

    def start(self, view: control_pb2.View) -> None:
        """The view starts: add the residuals that others handed over, and drop the state that this node held before."""
        holdings = self._holdings
        self._take_over()
        self.placement.tell_of_what_it_cannot_follow()
        moved = holdings.kept is not None
        if holdings.previous is not None:
            holdings.previous.view.drop_messages()
        holdings.previous = holdings.kept = self.loader.loading = None
        self.placement.base.loaded = {}
        holdings.traffic.serve_anew()  # frees state that only joiners needed
        if moved:
            gc.collect()  # frees the place before, which has reference cycles
            release_freed_memory()
        snapshots = holdings.traffic.snapshots
        if view.number in snapshots and holdings.training is not None:
            snapshots[view.number].held = frozen(holdings.training.state)

    def _take_over(self) -> None:
        """Rescale this node's residuals to its new weight, and add the residuals that others handed over."""
        handed, self._handed = self._handed, {}
        if self._holdings.training is not None:
            weigh(self._holdings.training.view)
            add(self._holdings.training.view, handed)

    def cannot_read(self, message: str) -> None:
        """A file of the checkpoint cannot be used: this node has no place until the next view."""
        self._holdings.state = self._holdings.training = self.loader.loading = None
        self._context.tell(message)


def read_view(view: control_pb2.View, promises: Promises | None) -> tuple[Plan, Job | None]:
    """The plan and the job of a view, before anything is done for it. Broken: it breaks a promise."""
    if promises is not None:
        return promises.read_view(view)
    return Plan.from_json(view.plan), Job.model_validate_json(view.job) if view.job else None


def position_of(view: control_pb2.View) -> Position:
    """The position in the stream of samples at which the view begins. RunFailed: the view is not valid."""
    try:
        redo = (*view.redo, *of_runs(view.redo_runs, view.cursor))
    except ValueError as problem:
        why = f"view {view.number} makes no sense: {problem}"
        raise RunFailed(why, "report it; join again meanwhile") from None
    return Position(view.step, view.cursor, redo)
