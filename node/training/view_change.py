"""From one view to the next: say how far the old one got, finish what it agreed on, take up the new place.

A view change may be broken off by the next one at any moment (`ViewEnds`); nothing that is shared changes before the
view starts, so there is nothing to undo.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...job.sampling import Position, of_runs
from ...job.schema import Job
from ...proto import control_pb2
from ...proto.errors import FarflungError, RunFailed
from ...proto.patience import Watch
from ...scheduler import Plan
from ..context import NodeContext
from ..device.probe import usable_cores
from ..ipc.arena import release_freed_memory
from ..models.fetch import Fetch
from ..promises import Broken, Promises
from ..rounds.signed import Signer
from ..state.base import BaseLoader
from ..state.rests import contribute
from ..state.stage_state import StageState, base_of
from ..state.transfer import Snapshot, frozen, named
from ..wire.needed_links import needed_links
from .handover import add, given, must_say, taken, unsent, weigh
from .holdings import Holdings
from .resources import aqsgd_ends
from .say_again import Unanswered
from .standby import Follower
from .take_up import StateLoader, fetch_of
from .view_member import ViewStart
from .view_training import ViewTraining

CATCH_UP_SECONDS = 60.0
"""Without a byte that arrives: then the last rounds are not to be had."""


class ViewChange:
    """One node's way from view to view: ``flush`` the old one, ``prepare`` the new one, ``start`` it."""

    def __init__(self, holdings: Holdings, said: Unanswered, read: Fetch, promises: Promises | None = None) -> None:
        """``said``: takes what the coordinator waits for. ``read``: bytes of an artifact of the coordinator's.
        ``promises``: what every view is held against; None: the coordinator is trusted."""
        self._holdings, self._said, self._promises = holdings, said, promises
        self.loader = StateLoader(holdings.traffic, read, holdings.resources.own is not None)
        self._base = BaseLoader(holdings.traffic)
        self._handed: dict[str, Tensor] = {}
        """What others hand to this node, until the view starts."""
        self._unfollowed: StageState | None = None
        """The place that this node followed as a spare until it could not any more."""
        self._cannot_follow = ""
        """Why this spare cannot follow what the view wants it to."""
        self._held_before = False
        """Whether this node has ever taken up a place."""

    @property
    def _context(self) -> NodeContext:
        return self._holdings.context

    # ---- the old view ----------------------------------------------------------------------

    def flush(self, flush: control_pb2.Flush, had_started: bool) -> None:
        """Stop where we are; from here on nothing of the old view is sent, and only the answer tells how far it got.
        ``had_started``: the view has started, and this node had not heard of it yet."""
        holdings, rests = self._holdings, self._holdings.resources.rests
        self._context.wire.leave_view()
        if had_started:
            self._take_over()  # those who had what is handed over have let go of it
        self._handed = {}
        if holdings.training is not None:
            holdings.training.texts.clear()
            holdings.training.mode.finish_committed()
        holdings.begun_at = holdings.step
        answer = control_pb2.Flushed(view=flush.view, step=holdings.step)
        if holdings.training is not None and holdings.training.started:
            holdings.previous = holdings.training  # a view that never started leaves nothing to finish: the one before
        holdings.training = None
        if holdings.previous is not None:
            _say_how_far(holdings.previous, answer)
        if holdings.follower is not None:
            holdings.state = holdings.follower.state if holdings.follower.whole else None
            if holdings.state is not None and holdings.state.gradient:
                answer.step, answer.norm = holdings.follower.step, holdings.follower.norm
        for step, kept_in in rests.held() if rests is not None else ():
            answer.kept.append(control_pb2.Kept(step=step, view=kept_in))
        held = holdings.held
        answer.layers.extend(sorted({layer for state in held for layer in state.layers}))
        if holdings.previous is not None and must_say(holdings.previous.view):
            layers = list(answer.layers)
            answer.unsent[:], answer.moved = unsent(holdings.previous.view, layers, self._context.definition)
        if held:
            for name, section in held[0].sections.items():
                answer.sections.append(control_pb2.SectionState(section=name, round=section.round, chain=section.chain))
        self._said.say(control_pb2.Report(flushed=answer))

    # ---- the new view ----------------------------------------------------------------------

    def prepare(self, view: control_pb2.View) -> None:
        """Take up the place that the view gives this node, with everything that belongs there, and say that it is
        prepared.

        Raises:
            Broken: the view breaks a promise, or the owner does not allow the memory that it takes.
            Unreadable: a file of the checkpoint that the view begins with is of no use.
            FarflungError: what belongs there cannot be had.
        """
        holdings = self._holdings
        plan = self._enter(view)
        if self.loader.loading is not None and self.loader.loading.checkpoint != view.checkpoint:
            self.loader.loading = None
        if view.checkpoint >= 0:
            self._go_back(view.checkpoint)
        self._catch_up(view)
        self._compare_histories(view)
        holdings.begun_at = view.step
        held = holdings.held
        # Nobody holds anything yet: who asks waits for what is loaded, or for the weights that the first node brings.
        begins = view.checkpoint >= 0
        server = holdings.traffic.server
        if not begins:
            before = holdings.previous.view if holdings.previous is not None else None
            server.open(named(held) | base_of(held) | given(self._context.job, before, view))
        new = self._place(view, plan, held) if self._context.name in plan.nodes else None
        if begins:
            states = [new] if new is not None else []
            server.open(named(states) | base_of(states))
        position = position_of(view)
        round = max((state.round for state in view.sections), default=0)
        if new is not None:
            for section in new.sections.values():
                section.restart_chain(view.number, round)
            start = self._start_of(view, plan, position)
            holdings.training = ViewTraining(self._context, holdings.resources, new, start)
            self._keep_snapshots(view, plan, new)
        # Until everybody is prepared, what this node held before may be asked for, now or by the next view. Of several
        # places the one that has trained: those of views that never started have nothing of their own.
        holdings.kept = next((state for state in reversed(held) if state is not new), None)
        holdings.state = new
        if new is not None:
            self._handed = taken(self._context, holdings.traffic, view, new)
        self._cannot_follow = ""
        holdings.follower = self._follow(view, plan, position, round, held) if new is None else None
        self._unfollowed = None
        self._say_prepared(view, new)

    def _enter(self, view: control_pb2.View) -> Plan:
        """The view's members, job and plan count from here on. Broken: it breaks a promise."""
        holdings = self._holdings
        plan, job = read_view(view, self._promises)
        before = holdings.context
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
        """The run goes back to a checkpoint: nothing that this node holds counts any more."""
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
        """Of the reference of every section that this node holds."""
        state = self._holdings.state
        assert state is not None
        gradient = self._context.job.updates.mode == "gradient"
        return [
            control_pb2.Fingerprint(section=name, round=section.round, content=section.fingerprint(gradient))
            for name, section in state.sections.items()
        ]

    def _needed(self, view: control_pb2.View, plan: Plan) -> set[str]:
        """The members with whom this node exchanges something in the view, and may finish the one before."""
        context, previous = self._context, self._holdings.previous
        names = [member.name for member in view.members]
        holders = {holder.layer: list(holder.nodes) for holder in view.holders}
        shadows = [(one.node, one.like) for one in view.shadows]
        committer = plan.nodes[0] if context.job.updates.mode == "gradient" else ""
        first = plan.nodes[0] if view.checkpoint == 0 and self._holdings.resources.own is not None else ""
        tied = context.definition.tied_trained is not None
        found = needed_links(plan, names, holders, shadows, context.name, committer, first, tied)
        if previous is not None:
            found |= needed_links(previous.view.plan, names, {}, [], context.name, committer="", tied=tied)
        return found

    def share_cores(self, view: control_pb2.View) -> None:
        """Nodes of one machine divide its cores: threads of several that wait for each other are 100 times slower."""
        if self._context.device.type != "cpu" or "OMP_NUM_THREADS" in os.environ:
            return
        hosts = {member.name: member.address.rpartition(":")[0] for member in view.members}
        together = sum(host == hosts.get(self._context.name) for host in hosts.values())
        island = self._holdings.resources.island
        together *= island.ranks if island else 1
        torch.set_num_threads(max(1, usable_cores() // max(1, together)))

    # ---- what the old view agreed on -----------------------------------------------------------

    def _catch_up(self, view: control_pb2.View) -> None:
        """Finish what the old view agreed on: the committed step, the rounds that some member has applied."""
        holdings, context = self._holdings, self._context
        targets = {state.section: state.round for state in view.sections}
        watch = Watch("the last rounds", time.monotonic(), CATCH_UP_SECONDS, context.wire.arrived)
        if holdings.follower is not None:
            self._follow_to_the_end(holdings.follower, view.step, targets, watch)
            return
        if holdings.previous is None:
            return
        mode = holdings.previous.mode
        while not mode.catch_up(view.step, view.norm, targets):
            watch = watch.at(context.wire.arrived, time.monotonic())
            if holdings.previous.view.gradient or watch.gives_up(time.monotonic()):
                context.warn(context.name, "results of the last round were not to be had: takes a peer's state")
                holdings.drop_states()
                return
            context.pump(0.1)
        mode.end()

    def _follow_to_the_end(self, follower: Follower, step: int, targets: dict[str, int], watch: Watch) -> None:
        """Apply the last rounds of the view that this node followed as a spare."""
        holdings, context = self._holdings, self._context
        follower.flushed(context.wire.members)
        while not follower.reached(step, targets):
            follower.work()
            watch = watch.at(context.wire.arrived, time.monotonic())
            if follower.failed or watch.gives_up(time.monotonic()):
                context.warn(context.name, "the last rounds were not to be had: takes a peer's state")
                holdings.state = holdings.kept = holdings.follower = None
                self._unfollowed = follower.state
                return
            context.pump(0.02)
        if follower.whole:
            follower.state.adopt()
            holdings.state = follower.state

    def _compare_histories(self, view: control_pb2.View) -> None:
        """Drop the state if most of the group went another way: the majority's is fetched instead."""
        chains = {state.section: (state.round, state.chain) for state in view.sections if state.chain}
        for state in self._holdings.held:
            for name, section in state.sections.items():
                round, chain = chains.get(name, (0, 0))
                if section.round == round and section.chain != chain != 0:
                    why = f"its history of {name} is not that of the group: takes a peer's state"
                    self._context.warn(self._context.name, why)
                    self._holdings.drop_states()
                    return

    # ---- the new place -------------------------------------------------------------------------

    def _place(self, view: control_pb2.View, plan: Plan, held: Sequence[StageState]) -> StageState:
        """The state of this node's place: the one that it holds, or another one, filled."""
        context, loading = self._context, self.loader.loading
        begun = [loading.state] if loading is not None else []  # of the same checkpoint
        new = next((one for one in held if one.same_place(context.definition, plan, context.name)), None)
        if new is not None:
            return new
        new = next((one for one in begun if one.same_place(context.definition, plan, context.name)), None)
        new = new or self.take_up(plan, context.name, [*held, *begun], view)
        self.loader.load(context, new, held, view)
        if context.name in view.restores:
            self._contribute(view, plan, new)
        return new

    def take_up(self, plan: Plan, place: str, held: Sequence[StageState], view: control_pb2.View) -> StageState:
        """What a place holds, without the values of what trains. FarflungError: it is too much for this node."""
        context, resources = self._context, self._holdings.resources
        must_fit(context, resources.owner.limits.memory, len(resources.optimizer.moments), plan, place)
        if self._held_before:
            gc.collect()  # a place that was given up is as large, and its training full of cycles
        self._held_before = True
        new = StageState(context.definition, context.job, plan, place, resources.optimizer, context.device)
        self._base.load(context, new, held, view)
        return new

    def _contribute(self, view: control_pb2.View, plan: Plan, new: StageState) -> None:
        """Take up again what this node kept beside the checkpoint that the view begins with."""
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

    def _keep_snapshots(self, view: control_pb2.View, plan: Plan, new: StageState) -> None:
        """Keep what spares are still to get of earlier views, and of this one what those want who have none."""
        snapshots, mine = self._holdings.traffic.snapshots, plan.stages_of(self._context.name)
        fetch = {one.node for one in view.shadows if one.fetch and plan.stages_of(one.like) == mine}
        for number, kept in list(snapshots.items()):
            kept.wanted_by &= fetch
            fetch -= kept.wanted_by
            if not kept.wanted_by:
                del snapshots[number]
        if fetch:  # they may begin a moment before this node does: until then it is what it holds
            snapshots[view.number] = Snapshot(named([new]), fetch)

    # ---- a spare -------------------------------------------------------------------------------

    def _follow(
        self, view: control_pb2.View, plan: Plan, position: Position, round: int, held: list[StageState]
    ) -> Follower | None:
        """What a spare does: follow the place that the view says, from what it holds or from a snapshot."""
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
                self._cannot_follow = error.message  # told when the view trains: before, nobody asks
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
        # What a fetch has brought and could not be followed: what has not changed since is not fetched again.
        before, self._unfollowed = self._unfollowed, None
        again = before is not None and before.same_place(context.definition, plan, mine.like)
        new = before if again and before is not None else self.take_up(plan, mine.like, held, view)
        names = list(new.named())
        fetch = fetch_of(context, holdings.traffic, new, names, lambda _: guides, snapshot=view.number, kept=again)
        return Follower(holdings.resources, holdings.traffic, new, fetch, self.caught_up)

    def caught_up(self, failed: str) -> None:
        """Tell the coordinator that this spare holds what the group holds; or why it cannot follow it."""
        if failed:
            self._context.tell(f"does not follow a stage: {failed}")
        caught_up = control_pb2.CaughtUp(view=self._context.view, failed=failed)
        self._said.say(control_pb2.Report(caught_up=caught_up))

    # ---- the start -----------------------------------------------------------------------------

    def start(self, view: control_pb2.View) -> None:
        """The view starts: what others handed over counts, and nobody needs what this node held before."""
        holdings = self._holdings
        self._take_over()
        if self._cannot_follow:
            self.caught_up(self._cannot_follow)
        moved = holdings.kept is not None
        holdings.previous = holdings.kept = self.loader.loading = None
        self._base.loaded = {}
        holdings.traffic.serve_anew()  # lets go of what only joiners needed
        if moved:
            gc.collect()  # the place before, whose training is full of cycles
            release_freed_memory()
        snapshots = holdings.traffic.snapshots
        if view.number in snapshots and holdings.training is not None:
            snapshots[view.number].held = frozen(holdings.training.state)

    def _take_over(self) -> None:
        """What is this node's own counts as much as it did with the weight of before; add what others had learnt of the
        layers that are its own now."""
        handed, self._handed = self._handed, {}
        if self._holdings.training is not None:
            weigh(self._holdings.training.view)
            add(self._holdings.training.view, handed)

    def cannot_read(self, message: str) -> None:
        """A file of the checkpoint is of no use: this node has no place until the next view."""
        self._holdings.state = self._holdings.training = self.loader.loading = None
        self._context.tell(message)


def read_view(view: control_pb2.View, promises: Promises | None) -> tuple[Plan, Job | None]:
    """The plan and the job of a view, before anything is done for it. Broken: it breaks a promise."""
    if promises is not None:
        return promises.read_view(view)
    return Plan.from_json(view.plan), Job.model_validate_json(view.job) if view.job else None


def position_of(view: control_pb2.View) -> Position:
    """Where in the stream of samples the view begins. RunFailed: the view makes no sense."""
    try:
        redo = (*view.redo, *of_runs(view.redo_runs, view.cursor))
    except ValueError as problem:
        why = f"view {view.number} makes no sense: {problem}"
        raise RunFailed(why, "report it; join again meanwhile") from None
    return Position(view.step, view.cursor, redo)


def must_fit(context: NodeContext, limit: int, moments: int, plan: Plan, place: str) -> None:
    """Broken when the owner allows less memory (``limit``, bytes; 0: any) than a place's weights and what moves them
    take. ``moments``: vectors that the optimiser keeps."""
    if not limit:
        return
    job = context.job
    ranges = [plan.stages[stage] for stage in plan.stages_of(place)]
    held = [layer for first, last in ranges for layer in context.facts.profile.layers[first : last + 1]]
    outer = bool(job.updates.outer_optimizer.momentum)
    moment = 0.5 if job.train.moments == "bf16" else 1.0
    copies = 2 + (job.updates.mode == "delta") + outer + moment * moments
    needed = sum(layer.parameters * copies + layer.frozen for layer in held) * 4
    if needed > limit:
        raise Broken(
            f"view {context.view} is refused: its layers need {needed / 1e9:.3g} GB, "
            f"and --max-memory allows {limit / 1e9:.3g} GB",
            "allow more, or let more nodes join, so that each holds less",
        )


def _say_how_far(previous: ViewTraining, answer: control_pb2.Flushed) -> None:
    """How far this node got in the view that ends."""
    answer.ready_step = previous.view.ready_step
    answer.norm = previous.view.committed_norm
    answer.save = previous.milestones.save
    pending = previous.report.pending()
    if pending is not None:
        answer.pending.CopyFrom(pending)
