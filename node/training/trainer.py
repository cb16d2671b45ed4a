"""The trainer's life: take a view, prepare for it, train until it ends; one thread, which owns the device.

Everything that arrives (orders of the coordinator, messages of peers) is handled in ``pump``, between actions
and while waiting. An order that ends the view is raised as ``ViewEnds`` out of whatever was going on; nothing
that must be atomic is changed before its commit point, so there is nothing to clean up.
"""

from __future__ import annotations

import gc
import json
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import torch

from ... import compress
from ...job.sampling import Position, of_runs
from ...job.schema import Facts, Job
from ...proto import control_pb2, data_pb2
from ...proto.errors import FarflungError, Parted, RunFailed
from ...proto.patience import Watch
from ...scheduler import Plan
from ..data.dataset import Dataset, tokens_size
from ..device.clock import StepClock
from ..device.limits import Owner, Wish
from ..device.memory import available_memory
from ..device.probe import usable_cores
from ..device.tracing import Tracing
from ..ipc.arena import release_freed_memory
from ..models.definition import ModelDefinition
from ..pipeline.activations import AqsgdEnds
from ..pipeline.island import Island
from ..promises import Broken, Promises
from ..rounds.exchange import Refused
from ..rounds.signed import Signer
from ..state.base import load_base
from ..state.checkpoint import Unreadable
from ..state.optimizers import Optimizer, make_optimizer
from ..state.rests import Rests, contribute
from ..state.stage_state import StageState, base_of
from ..state.transfer import Loading, Snapshot, StateFetch, StateServer, fetch_of, frozen, load_state, named
from ..wire.api import Wire
from ..wire.events import CoordinatorBack, CoordinatorLost, Event, OrderEvent, PeerLost, Received
from ..wire.needed_links import needed_links
from .final_contribution import left_unsaid, say_all, say_no_more_than_usual
from .handover import add, given, must_say, taken, unsent, weigh
from .say_again import SayAgain
from .standby import Follower
from .steps import Training, ViewEnds
from .waiting import Waiting

if TYPE_CHECKING:
    from .external_loop import OwnLoop

ROUND_KINDS = {
    data_pb2.CONTRIBUTION,
    data_pb2.RESULT,
    data_pb2.RESULT_HELD,
    data_pb2.RESULT_REQUEST,
    data_pb2.CONTRIBUTION_REQUEST,
    data_pb2.AUDIT,
    data_pb2.EQUIVOCATION,
    data_pb2.RECEIPTS,
    data_pb2.KEY,
    data_pb2.ROUND_END,
}
FOLLOWED_KINDS = {data_pb2.RESULT, data_pb2.CONTRIBUTION, data_pb2.ROUND_END}
MAIL_KINDS = {data_pb2.ACTIVATION, data_pb2.ACTIVATION_GRADIENT, data_pb2.EVALUATION}
CATCH_UP_SECONDS = 60.0
"""Without a byte that arrives: then the last rounds are not to be had."""
LOADED_AT_ONCE = 16 << 20
"""Bytes: in between, peers hear that what they wait for is being loaded."""
ALONE_SECONDS = 1800.0
IDLE_UPDATES = 5
"""So many updates of norm zero in a row are a fault of the node's, not chance."""
Payload = bytes | memoryview | Sequence[bytes] | Sequence[memoryview]


class Stopped(Exception):
    """The coordinator says that this node's work is over."""

    def __init__(self, stop: control_pb2.Stop) -> None:
        super().__init__(stop.why)
        self.why, self.failed, self.refused = stop.why, stop.failed, stop.refused
        self.again = stop.again


@dataclass
class _Parting:
    """A wish to have no place, since ``step`` and the time ``began``. ``told``: the coordinator knows."""

    wish: Wish
    step: int
    told: bool = False
    began: float = field(default_factory=time.monotonic)


class Trainer:
    """One node's trainer, from its first view to its last."""

    def __init__(
        self,
        wire: Wire,
        name: str,
        job: Job,
        facts: Facts,
        definition: ModelDefinition,
        open_data: Callable[[], Dataset],
        device: torch.device,
        emit: Callable[[dict[str, Any]], None] = lambda event: None,
        owner: Owner | None = None,
        island: Island | None = None,
        own: OwnLoop | None = None,
        rests: Rests | None = None,
        promises: Promises | None = None,
    ) -> None:
        """``rests``: where what is learnt beside checkpoints is kept; None: nowhere. ``promises``: what every view is
        held against; None: the coordinator is trusted."""
        self.promises = promises
        self.emit, self.owner = emit, owner or Owner()
        self.wire, self.name, self.job, self.facts = wire, name, job, facts
        self.definition, self.device = definition, device
        self.island = island
        """Where the node has several devices; ``device`` is the first of them."""
        self._open_data = open_data
        self.own = own
        """A person's training loop, which computes the steps and has an optimiser of its own (farflung.group)."""
        self.rests = rests
        self.first = ""
        """The first node of the view's plan."""
        self.optimizer: Optimizer = make_optimizer(job) if own is None else own.optimizer
        self.state: StageState | None = None
        self._kept: StageState | None = None
        self.loading: Loading | None = None
        """A load that is under way, or that a view change broke off."""
        self.base: dict[str, torch.Tensor] = {}
        """Frozen weights that are here of a load that a view change broke off, by their names in the model folder."""
        self.previous: Training | None = None
        """The training of the view before, whose rounds' log and reference peers may still ask for."""
        self.training: Training | None = None
        self.step = 0
        self.view = 0
        self._events: deque[Event] = deque()
        self._orders: deque[control_pb2.Order] = deque()
        self._mail: dict[tuple[int, int, int, int], tuple[data_pb2.Header, npt.NDArray[np.uint8]]] = {}
        self.ends = self._aqsgd_ends(job)
        self.lost: set[str] = set()
        """Members of this view whose connection has broken, until a fetch has taken note."""
        self.fetches: WeakValueDictionary[int, StateFetch] = WeakValueDictionary()
        """Who waits for answers of peers, by the number that its requests carry; nobody else keeps them alive."""
        self.requests = count(1)
        self._members: set[str] = set()
        self.signer: Signer | None = None
        """What signs contributions of this view; None: without TLS."""
        self._snapshots: dict[int, Snapshot] = {}
        """What this node held when views began, for spares that have not got all of it yet."""
        self._held_before = False
        """Whether this node has taken up a place, be it one that it no longer holds."""
        self.server = StateServer(self.send, self._snapshots)
        self.clock = StepClock(worked=wire.worked)
        self.waiting = Waiting(wire.report, lambda: wire.arrived)
        self.tracing = Tracing(self.clock, device, lambda file, data: wire.store(0, file, data, 1, {}))
        self._own: _Parting | None = None
        """What its owner wants."""
        self._deserted = False
        self._deserted_since: float | None = None
        self._asked: _Parting | None = None
        """What the coordinator wants, until it is answered."""
        self.follower: Follower | None = None
        """The place that this node follows as a spare."""
        self._unfollowed: StageState | None = None
        """The place that this node followed as a spare until it could not any more."""
        self._cannot_follow = ""
        """Why this spare cannot follow what the view wants it to."""
        self._handed: dict[str, torch.Tensor] = {}
        """What others hand to this node, until the view starts."""
        self._said: control_pb2.Report | None = None
        """What the coordinator was told last and has to act on."""
        self._idle, self._told_idle = 0, False
        """Updates of norm zero in a row, and whether the run knows."""

    def _aqsgd_ends(self, job: Job) -> AqsgdEnds:
        disk, limit = int(job.activations.disk_gb * 1e9), self.owner.limits.disk
        if limit:
            disk = min(disk, max(0, limit - tokens_size(self.facts)))
        return AqsgdEnds(job.activations.forward, self.memory_left() // 4, disk)

    def memory_left(self) -> int:
        """Bytes of main memory that this node may still take."""
        available, limit = available_memory(), self.owner.limits.memory
        return min(available, limit) if limit else available

    @cached_property
    def data(self) -> Dataset:
        """The samples; fetched when a stage first needs them, which stages in the middle never do."""
        return self._open_data()

    # ---- life ------------------------------------------------------------------------------

    def run(self) -> None:
        """Train until the coordinator says stop, or this node has nothing to do for a run without coordinator.

        Raises:
            Stopped: with the coordinator's reason; ``failed`` or ``refused`` if it was not the end of the run.
        """
        self.wire.while_waiting = self._wait_for_the_coordinator
        while True:
            self.wire.doing = "waits for a view"
            try:
                self._live(self._wait_for_view())
            except ViewEnds as end:
                self._flush(end.order)
            except (Refused, compress.CodecError) as problem:
                raise RunFailed(
                    f"step {self.step + 1} cannot be computed on this node: {problem}",
                    "if it happens again, train with codec none and a lower learning rate to see where numbers blow up",
                ) from problem

    def _live(self, view: control_pb2.View) -> None:
        self.wire.doing = f"prepares for view {view.number}"
        try:
            self._prepare(view)
        except Unreadable as problem:
            self._cannot_read(view, problem)
        self.wire.doing = f"waits for the others of view {view.number}"
        self._wait_for(lambda order: order.WhichOneof("kind") == "start" and order.start.view == view.number)
        self._said = None
        self._take_over()
        if self._cannot_follow:
            self.caught_up(self._cannot_follow)
        moved, self.previous, self._kept, self.loading = self._kept is not None, None, None, None
        self.base = {}
        self.server = StateServer(self.send, self._snapshots)  # lets go of what only joiners needed
        if moved:
            gc.collect()  # the place before, whose training is full of cycles
            release_freed_memory()
        if view.number in self._snapshots and self.training is not None:
            self._snapshots[view.number].held = frozen(self.training.state)
        self._tell(view)
        if self.training is not None:
            if self._own is not None:
                self._own.told = False  # a place, all the same: the coordinator may have started again
            self.training.run()
            self._finished()
        self.wire.doing = "is a spare" if self.training is None else "is done"
        self.tracing.finish()
        again = SayAgain()
        while True:  # answer peers until the next order
            if again.due() and self._said is not None:  # that it has finished, or caught up
                self.wire.report(self._said)
            self._leave_if_forgotten()
            if self.follower is None:
                self.pump(1.0)
            else:
                self.follower.work()
                self.pump(1.0 if self.follower.failed else 0.05)

    def _cannot_read(self, view: control_pb2.View, problem: Unreadable) -> None:
        """Tell the coordinator which file is of no use, and wait for what comes of it: another view, or the end."""
        self.state = self.training = self.loading = None
        self.tell(problem.message)
        self.wire.doing = "cannot read a checkpoint"
        said = control_pb2.Unreadable(view=view.number, step=problem.step, file=problem.file, why=problem.why[:500])
        self._say(control_pb2.Report(unreadable=said))
        self._wait_for(lambda order: False)

    def _tell(self, view: control_pb2.View) -> None:
        """Show the person at this node what the view makes of it."""
        plan = Plan.from_json(view.plan)
        self.emit(
            {
                "event": "view",
                "time": time.time(),
                "view": view.number,
                "pipelines": plan.pipelines,
                "stages": plan.stages,
                "spares": list(plan.spares),
                "codecs": plan.codecs,
                "why": plan.spares.get(self.name) or view.why,
            }
        )

    def _leave_if_forgotten(self) -> None:
        """A node that has nothing to train does not wait for ever for a coordinator that may be gone for good."""
        if self._deserted_since is not None and time.monotonic() - self._deserted_since > ALONE_SECONDS:
            what = "has trained its last step" if self.training is not None else "is a spare"
            alone = f"no coordinator has answered for {ALONE_SECONDS / 60:.0f} min"
            raise Stopped(control_pb2.Stop(why=f"it {what}, and {alone}: join again when there is one"))

    def _finished(self) -> None:
        assert self.training is not None and self.state is not None
        report = control_pb2.Report(finished=control_pb2.Finished(view=self.view, step=self.training.step))
        report.finished.fingerprints.extend(self._fingerprints())
        self._say(report)

    def _say(self, report: control_pb2.Report) -> None:
        """A report that the coordinator waits for: it is said again until there is an answer."""
        self._said = report
        self.wire.report(report)

    # ---- what arrives ----------------------------------------------------------------------

    def pump(self, timeout: float = 0.0) -> None:
        """Handle everything that has arrived, waiting up to ``timeout`` for the first of it."""
        if self.island is not None:
            self.island.check()
        if self.training is not None and self.training.has_text_to_compute:
            timeout = 0.0
        if not self._events:
            under_way, asked = self.wire.under_way, time.perf_counter()
            self._events.extend(self.wire.poll(timeout))
            if timeout:
                self.clock.idle(time.perf_counter() - asked, under_way or self.wire.under_way)
        while self._events:
            event = self._events.popleft()  # first: handling it may end the view, and what comes after must stay
            if isinstance(event, OrderEvent):
                self._order(event.order)
            elif isinstance(event, Received):
                self._receive(event.sender, event.header, event.payload)
            elif isinstance(event, PeerLost):
                self.lost.add(event.peer)
            elif isinstance(event, CoordinatorLost | CoordinatorBack):
                self._deserted = isinstance(event, CoordinatorLost)
                self._deserted_since = time.monotonic() if self._deserted else None
                if self._own is not None:
                    self._own.told = False  # it may have started again
            else:
                raise TypeError(event)
        self._heed()
        self.server.tick(time.monotonic())
        self.tracing.tick()
        if self.training is not None:
            self.waiting.tick(self.view)
            self.training.tick()
        elif self.previous is not None:
            self.previous.log.tick()

    def _wait_for_the_coordinator(self) -> None:
        if self.training is not None and self.training.started:
            self.waiting.on_the_coordinator(self.view)
        self.pump(0.2)

    def load(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of an artifact of the coordinator's, as Wire.fetch: meanwhile whatever arrives is handled. ViewEnds."""
        if length is None:
            return self.wire.fetch_later(name, offset, None)()
        found = bytearray()
        while len(found) < length:
            data = self.wire.fetch_later(name, offset + len(found), min(LOADED_AT_ONCE, length - len(found)))()
            if not data:
                break
            found += data
        return bytes(found)

    def _order(self, order: control_pb2.Order) -> None:
        kind = order.WhichOneof("kind")
        if kind == "stop":
            raise Stopped(order.stop)
        if kind == "flush":
            if order.flush.view > self.view:
                raise ViewEnds(order.flush)
        elif kind in ("view", "start"):
            self._orders.append(order)
        elif kind == "trace":
            self.tracing.wanted(order.trace)
        elif kind == "complete":
            if self.rests is not None:
                self.rests.complete = (order.complete.view, order.complete.step)
        elif kind == "write":
            if self.training is not None and order.write.view == self.view:
                self.training.write(order.write)
        elif kind == "judge":
            judge = self.training.judge if self.training is not None else None
            if judge is not None and order.judge.view == self.view:
                judge.look(order.judge.node, order.judge.rounds)
        elif kind == "leave":
            self._asked = self._parting(Wish(order.leave.why, order.leave.stays))
        elif kind == "notice" and order.notice.HasField("advice"):
            said = order.notice.advice
            told = {"doing": said.doing, "use": said.use, "better": said.better}
            self.emit({"event": "advice", "time": time.time(), "node": self.name, **told})
        elif kind == "notice":
            self.emit({"event": "notice", "time": time.time(), "message": order.notice.message, "node": self.name})

    def _heed(self) -> None:
        """Tell the coordinator when this node wants no place any more: when a round has taken what it had."""
        wish = self.owner.wish()
        if wish != (self._own.wish if self._own else None):
            if wish is None:
                self.wire.report(control_pb2.Report(back=control_pb2.Back()))
                if self.training is not None:
                    say_no_more_than_usual(self.training)
                self.emit({"event": "notice", "time": time.time(), "message": "no longer paused", "node": self.name})
            self._own = self._parting(wish) if wish else None
        agreed = self.job.updates.agreed  # without agreement the neighbours have what the node had
        for parting in (self._own, self._asked):
            if parting is not None and not parting.told and (not agreed or self._handed_over(parting)):
                if self._deserted and not parting.wish.stays:  # nobody is there to give its place away
                    raise Stopped(control_pb2.Stop(why=parting.wish.why))
                parting.told = True
                rest = left_unsaid(self.training) if self.training is not None and agreed else ""
                leaving = control_pb2.Leaving(
                    why=parting.wish.why + rest, stays=parting.wish.stays, asked=parting is self._asked
                )
                self.wire.report(control_pb2.Report(leaving=leaving))
        if self._asked is not None and self._asked.told:
            self._asked = None

    def _parting(self, wish: Wish) -> _Parting:
        if self.training is not None and self.job.updates.agreed:
            say_all(self.training, self.wire.uplink())
        return _Parting(wish, self.step)

    def _handed_over(self, parting: _Parting) -> bool:
        """Whether a round that began after the wish is applied, or none can be waited for."""
        training = self.training
        if training is None or training.step >= training.last_step:
            return True
        # Not by the view's beginning alone: what the view before left in x is still there.
        if training.mode.reached > max(parting.step, training.position.step):
            return True
        return time.monotonic() - parting.began > parting.wish.seconds

    def _receive(self, sender: str, header: data_pb2.Header, payload: npt.NDArray[np.uint8]) -> None:
        """Handle a message; one that makes no sense is the sender's fault and must not end this node."""
        try:
            self._received(sender, header, payload)
        except (Refused, compress.CodecError, ValueError) as problem:
            self.refuse(sender, f"a {data_pb2.Kind.Name(header.kind)} that makes no sense: {problem}")

    def _received(self, sender: str, header: data_pb2.Header, payload: npt.NDArray[np.uint8]) -> None:
        kind = header.kind
        if header.view != self.view:
            return  # of a view that this node has left
        if kind in MAIL_KINDS:
            if self.training is None:
                return  # it had arrived when the view ended
            if self.training.expects(sender, header):
                self._mail[kind, header.step, header.microbatch, header.layer] = (header, payload)
            else:
                self.refuse(sender, f"an activation of step {header.step} that nobody waits for")
        elif kind in ROUND_KINDS:
            # Rounds of the view before may still be finished while this one is prepared.
            if header.request and kind in FOLLOWED_KINDS:
                if self.follower is not None:
                    self.follower.handle(sender, header, payload)
                return
            old = self.training is None or header.round <= self.training.base_round
            training = self.previous if old else self.training
            if training is not None and header.section in training.links:
                training.links[header.section].handle(sender, header, payload)
        elif kind == data_pb2.ROUND_REQUEST:
            old = self.training is None or header.round <= self.training.base_round
            training = self.previous if old else self.training
            if training is not None:
                training.log.request(sender, header.round, header.request)
        elif kind == data_pb2.STATE_REQUEST:
            self.server.request(sender, header, payload.tobytes())
        elif kind == data_pb2.STATE_COMING:
            if header.request in self.fetches:
                self.fetches[header.request].coming(sender)
        elif kind == data_pb2.STATE:
            asked = self.fetches.get(header.request)
            if asked is not None:  # else what a slow holder sends when another has served it
                asked.answer(sender, header, payload)
        elif self.training is not None:
            self.training.handle(sender, header, payload)

    def has(self, kind: int, step: int, microbatch: int, layer: int) -> bool:
        """Whether that message from a neighbour is there to be taken."""
        return (kind, step, microbatch, layer) in self._mail

    def take(self, kind: int, step: int, microbatch: int, layer: int) -> tuple[data_pb2.Header, npt.NDArray[np.uint8]]:
        """Wait for one message from a neighbour."""
        key = (kind, step, microbatch, layer)
        if key not in self._mail:
            training = self.training
            peers = (lambda: training.sender_of(kind, layer)) if training is not None else (lambda: ())
            what = f"wait for {data_pb2.Kind.Name(data_pb2.Kind.ValueType(kind))}"
            with self.clock.span(what, microbatch), self.waiting.on(peers):
                while key not in self._mail:
                    self.pump(0.2)
        return self._mail.pop(key)

    def _wait_for(self, wanted: Any) -> control_pb2.Order:
        """The order that is ``wanted``: the answer to what was said last, which is said again meanwhile."""
        again = SayAgain()
        while True:
            for order in list(self._orders):
                if wanted(order):
                    self._orders.remove(order)
                    return order
            self.pump(1.0)
            if self._said is not None and again.due():
                self.wire.report(self._said)

    def _wait_for_view(self) -> control_pb2.View:
        return self._wait_for(lambda order: order.WhichOneof("kind") == "view" and order.view.number > self.view).view

    # ---- between views ---------------------------------------------------------------------

    def _flush(self, flush: control_pb2.Flush) -> None:
        """Stop where we are; from here on nothing of the old view is sent, and only the answer tells how far it got."""
        self.wire.leave_view()
        if any(one.WhichOneof("kind") == "start" and one.start.view == self.view for one in self._orders):
            self._take_over()  # those who had it have let go of it
        self._handed = {}
        self._orders.clear()
        if self.training is not None:
            self.training.texts.clear()
            self.training.mode.finish_committed()
        answer = control_pb2.Flushed(view=flush.view, step=self.step)
        if self.training is not None and self.training.started:
            self.previous = self.training  # a view that never started leaves nothing to finish; keep the one before
        self.training = None
        if self.previous is not None:
            answer.ready_step = self.previous.ready_step
            answer.norm = self.previous.committed_norm
            answer.save = self.previous.save
            pending = self.previous.pending()
            if pending is not None:
                answer.pending.CopyFrom(pending)
        if self.follower is not None:
            self.state = self.follower.state if self.follower.whole else None
            if self.state is not None and self.state.gradient:
                answer.step, answer.norm = self.follower.step, self.follower.norm
        for step, kept_in in self.rests.held() if self.rests is not None else ():
            answer.kept.append(control_pb2.Kept(step=step, view=kept_in))
        held = self._held()
        answer.layers.extend(sorted({layer for state in held for layer in state.layers}))
        if self.previous is not None and must_say(self.previous):
            answer.unsent[:], answer.moved = unsent(self.previous, list(answer.layers), self.definition)
        if held:
            for name, section in held[0].sections.items():
                answer.sections.append(control_pb2.SectionState(section=name, round=section.round, chain=section.chain))
        self._say(control_pb2.Report(flushed=answer))

    def _prepare(self, view: control_pb2.View) -> None:
        """Take up the place that the view gives this node, with everything that belongs there."""
        plan, job = self._read(view)
        self.view = view.number
        if job is not None:
            self._take_job(job)
        self._members = {member.name for member in view.members}
        identity = self.wire.identity
        sessions = {member.name: member.session for member in view.members}
        self.signer = None if identity is None else Signer(identity, view.number, sessions)
        self.lost = set()
        self.server = StateServer(self.send, self._snapshots)
        self._mail.clear()
        self.wire.enter(view.number, view.members, self._needed(view, plan))
        self._share_cores(view)
        if self.loading is not None and self.loading.checkpoint != view.checkpoint:
            self.loading = None
        if view.checkpoint >= 0:
            self.state = self._kept = self.previous = self.follower = None
            self._snapshots.clear()
            if self.rests is not None:
                self.rests.forget_after(view.checkpoint)
        self._catch_up(view)
        self._judge(view)
        self.step = view.step
        self.first = plan.pipelines[0][0]
        held = self._held()
        # Nobody holds anything yet: who asks waits for what is loaded, or for the weights that the first node brings.
        begins = view.checkpoint >= 0
        if not begins:
            self.server.open(named(held) | base_of(held) | given(self, view))
        new: StageState | None = None
        if self.name in plan.nodes:
            new = next((state for state in held if state.same_place(self.definition, plan, self.name)), None)
            if new is None:
                begun = [self.loading.state] if self.loading is not None else []  # of the same checkpoint
                new = next((one for one in begun if one.same_place(self.definition, plan, self.name)), None)
                new = new or self._take_up(plan, self.name, [*held, *begun], view)
                load_state(self, new, held, view)
                if self.name in view.restores:
                    self._contribute(view, plan, new)
        if begins:
            states = [new] if new is not None else []
            self.server.open(named(states) | base_of(states))
        try:
            redo = (*view.redo, *of_runs(view.redo_runs, view.cursor))
        except ValueError as problem:
            why = f"view {view.number} makes no sense: {problem}"
            raise RunFailed(why, "report it; join again meanwhile") from None
        position = Position(view.step, view.cursor, redo)
        round = max((state.round for state in view.sections), default=0)
        if new is not None:
            for section in new.sections.values():
                section.restart_chain(view.number, round)
            followed = frozenset(stage for one in view.shadows for stage in plan.stages_of(one.like))
            self.training = Training(self, new, plan, position, view.save, view.evaluate, followed)
            self._keep_snapshots(view, plan, new)
        # Until everybody is prepared, what this node held before may be asked for, now or by the next view. Of several
        # places the one that has trained: those of views that never started have nothing of their own.
        self._kept = next((state for state in reversed(held) if state is not new), None)
        self.state = new
        if new is not None:
            self._handed = taken(self, view, new)
        self._cannot_follow = ""
        self.follower = self._follow(view, plan, position, round, held) if new is None else None
        self._unfollowed = None
        prepared = control_pb2.Prepared(view=view.number)
        if new is not None:
            prepared.fingerprints.extend(self._fingerprints())
        place = self.follower.state if self.follower is not None else new
        if place is not None:
            prepared.bases.extend(control_pb2.Base(layer=layer, content=one) for layer, one in place.bases.items())
        self._say(control_pb2.Report(prepared=prepared))

    def _take_over(self) -> None:
        """The view starts: what is this node's own counts as much as it did with the weight of before; add what others
        had learnt of the layers that are its own now."""
        handed, self._handed = self._handed, {}
        if self.training is not None:
            weigh(self.training)
            add(self.training, handed)

    def _read(self, view: control_pb2.View) -> tuple[Plan, Job | None]:
        """The plan and the job of a view, before anything is done for it. Broken: it breaks a promise."""
        if self.promises is not None:
            return self.promises.read_view(view)
        return Plan.from_json(view.plan), Job.model_validate_json(view.job) if view.job else None

    def _contribute(self, view: control_pb2.View, plan: Plan, new: StageState) -> None:
        """Take up again what this node kept beside the checkpoint that the view begins with."""
        rest = self.rests.read(view.checkpoint, view.kept_in) if self.rests is not None else None
        if rest is None:
            self.warn(self.name, f"what it kept beside the checkpoint of step {view.checkpoint} is damaged, and lost")
            return
        with torch.no_grad():
            lost = contribute(rest, new, plan, self.name)
        if lost:
            part = f"{lost / rest.norm:.1%} of what it had learnt beside the checkpoint of step {view.checkpoint}"
            self.warn(self.name, f"{part} is lost: it was of parameters, or of weights, that its place does not have")

    def _needed(self, view: control_pb2.View, plan: Plan) -> set[str]:
        """The members with whom this node exchanges something in the view, and may finish the one before."""
        names = [member.name for member in view.members]
        holders = {holder.layer: list(holder.nodes) for holder in view.holders}
        shadows = [(one.node, one.like) for one in view.shadows]
        committer = plan.nodes[0] if self.job.updates.mode == "gradient" else ""
        first = plan.nodes[0] if view.checkpoint == 0 and self.own is not None else ""
        tied = self.definition.tied_trained is not None
        found = needed_links(plan, names, holders, shadows, self.name, committer, first, tied)
        if self.previous is not None:
            found |= needed_links(self.previous.plan, names, {}, [], self.name, committer="", tied=tied)
        return found

    def _keep_snapshots(self, view: control_pb2.View, plan: Plan, new: StageState) -> None:
        """Keep what spares are still to get of earlier views, and of this one what those want who have none."""
        mine = plan.stages_of(self.name)
        fetch = {one.node for one in view.shadows if one.fetch and plan.stages_of(one.like) == mine}
        for number, kept in list(self._snapshots.items()):
            kept.wanted_by &= fetch
            fetch -= kept.wanted_by
            if not kept.wanted_by:
                del self._snapshots[number]
        if fetch:  # they may begin a moment before this node does: until then it is what it holds
            self._snapshots[view.number] = Snapshot(named([new]), fetch)

    def _follow(
        self, view: control_pb2.View, plan: Plan, position: Position, round: int, held: list[StageState]
    ) -> Follower | None:
        """What a spare does: follow the place that the view says, from what it holds or from a snapshot."""
        mine = next((one for one in view.shadows if one.node == self.name), None)
        if mine is None:
            return None
        guides = [name for name in plan.nodes if plan.stages_of(name) == plan.stages_of(mine.like)]
        first = sum(self.name.encode()) % len(guides)
        follower = self.follower
        if follower is None or follower.failed or not follower.state.same_place(self.definition, plan, mine.like):
            kept = next((state for state in held if state.same_place(self.definition, plan, mine.like)), None)
            if kept is None or mine.fetch:
                # What a fetch has brought and could not be followed: what has not changed since is not fetched again.
                before, self._unfollowed = self._unfollowed, None
                again = before is not None and before.same_place(self.definition, plan, mine.like)
                try:
                    new = before if again and before is not None else self._take_up(plan, mine.like, held, view)
                except FarflungError as error:
                    self._cannot_follow = error.message  # told when the view trains: before, nobody asks
                    return None
                fetch = fetch_of(self, new, list(new.named()), lambda _: guides, view.number, kept=again)
                follower = Follower(self, new, fetch)
            else:
                follower = Follower(self, kept, None)
        follower.enter(plan, mine.like, position, round, guides[first:] + guides[:first])
        self.state = follower.state if follower.whole else None
        return follower

    def caught_up(self, failed: str) -> None:
        """Tell the coordinator that this spare holds what the group holds; or why it cannot follow it."""
        if failed:
            self.tell(f"does not follow a stage: {failed}")
        self._say(control_pb2.Report(caught_up=control_pb2.CaughtUp(view=self.view, failed=failed)))

    def _take_job(self, job: Job) -> None:
        """The job as it is from this view on: some of its values may change while the run goes on."""
        if job.activations.forward != self.job.activations.forward:
            self.ends = self._aqsgd_ends(job)
        self.job = job
        self.facts = self.facts.model_copy(update={"steps": job.steps(self.facts.samples)})

    def _take_up(self, plan: Plan, place: str, held: Sequence[StageState], view: control_pb2.View) -> StageState:
        """What a place holds, without the values of what trains. FarflungError: it is too much for this node."""
        self._must_fit(plan, place)
        if self._held_before:
            gc.collect()  # a place that was given up is as large, and its training full of cycles
        self._held_before = True
        new = StageState(self.definition, self.job, plan, place, self.optimizer, self.device)
        load_base(self, new, held, view)
        return new

    def _must_fit(self, plan: Plan, place: str) -> None:
        """FarflungError when the owner allows less memory than the stage's weights and what moves them take."""
        limit = self.owner.limits.memory
        if not limit:
            return
        ranges = [plan.stages[stage] for stage in plan.stages_of(place)]
        held = [layer for first, last in ranges for layer in self.facts.profile.layers[first : last + 1]]
        outer = bool(self.job.updates.outer_optimizer.momentum)
        moment = 0.5 if self.job.train.moments == "bf16" else 1.0
        copies = 2 + (self.job.updates.mode == "delta") + outer + moment * len(self.optimizer.moments)
        needed = sum(layer.parameters * copies + layer.frozen for layer in held) * 4
        if needed > limit:
            raise Broken(
                f"view {self.view} is refused: its layers need {needed / 1e9:.3g} GB, "
                f"and --max-memory allows {limit / 1e9:.3g} GB",
                "allow more, or let more nodes join, so that each holds less",
            )

    def _catch_up(self, view: control_pb2.View) -> None:
        """Finish what the old view agreed on: the committed step, the rounds that some member has applied."""
        targets = {state.section: state.round for state in view.sections}
        watch = Watch("the last rounds", time.monotonic(), CATCH_UP_SECONDS, self.wire.arrived)
        if self.follower is not None:
            self._follow_to_the_end(self.follower, view.step, targets, watch)
            return
        if self.previous is None:
            return
        mode = self.previous.mode
        while not mode.catch_up(view.step, view.norm, targets):
            watch = watch.at(self.wire.arrived, time.monotonic())
            if self.previous.gradient or watch.gives_up(time.monotonic()):
                self.warn(self.name, "results of the last round were not to be had: takes a peer's state")
                self.state = self._kept = self.previous = None
                return
            self.pump(0.1)
        mode.end()

    def _follow_to_the_end(self, follower: Follower, step: int, targets: dict[str, int], watch: Watch) -> None:
        """Apply the last rounds of the view that this node followed as a spare."""
        follower.flushed(self._members)
        while not follower.reached(step, targets):
            follower.work()
            watch = watch.at(self.wire.arrived, time.monotonic())
            if follower.failed or watch.gives_up(time.monotonic()):
                self.warn(self.name, "the last rounds were not to be had: takes a peer's state")
                self.state = self._kept = self.follower = None
                self._unfollowed = follower.state
                return
            self.pump(0.02)
        if follower.whole:
            follower.state.adopt()
            self.state = follower.state

    def _share_cores(self, view: control_pb2.View) -> None:
        """Nodes of one machine divide its cores: threads of several that wait for each other are 100 times slower."""
        if self.device.type != "cpu" or "OMP_NUM_THREADS" in os.environ:
            return
        hosts = {member.name: member.address.rpartition(":")[0] for member in view.members}
        together = sum(host == hosts.get(self.name) for host in hosts.values())
        together *= self.island.ranks if self.island else 1
        torch.set_num_threads(max(1, usable_cores() // max(1, together)))

    def _judge(self, view: control_pb2.View) -> None:
        """Drop the state if most of the group went another way: the majority's is fetched instead."""
        chains = {state.section: (state.round, state.chain) for state in view.sections if state.chain}
        for state in self._held():
            for name, section in state.sections.items():
                round, chain = chains.get(name, (0, 0))
                if section.round == round and section.chain != chain != 0:
                    self.warn(self.name, f"its history of {name} is not that of the group: takes a peer's state")
                    self.state = self._kept = self.previous = None
                    return

    def _held(self) -> list[StageState]:
        """What this node holds of the model at the present round: its place, and the one before while it moves."""
        return [state for state in (self.state, self._kept) if state is not None]

    def send(self, to: str, header: data_pb2.Header, payload: Payload, priority: int) -> None:
        """Send to a member of this view; what is meant for one that has gone is dropped."""
        if to in self._members and self.clock.spans is None:
            self.wire.send(to, header, payload, priority)
        elif to in self._members:
            with self.clock.span(f"send {data_pb2.Kind.Name(header.kind)}", to):
                self.wire.send(to, header, payload, priority)

    def _fingerprints(self) -> list[control_pb2.Fingerprint]:
        assert self.state is not None
        gradient = self.job.updates.mode == "gradient"
        return [
            control_pb2.Fingerprint(section=name, round=section.round, content=section.fingerprint(gradient))
            for name, section in self.state.sections.items()
        ]

    def tell(self, message: str) -> None:
        """Something for the person at this node."""
        self.emit({"event": "notice", "time": time.time(), "message": message, "node": self.name})

    def warn(self, node: str, message: str) -> None:
        """Tell the run that something of ``node`` was refused or went wrong."""
        self.wire.report(control_pb2.Report(warning=control_pb2.Warning(node=node, message=message)))

    def offered(self, norm: float) -> None:
        """The norm of this node's update: of what it offers in a round, or alone in its group of its gradient. Warns
        once where it has been exactly zero several times in a row."""
        learns = self.state is not None and any(section.g.numel() for section in self.state.sections.values())
        self._idle = self._idle + 1 if learns and not norm else 0
        if self._idle == IDLE_UPDATES and not self._told_idle:
            self._told_idle = True
            why = "do its samples give a gradient, and is the learning rate above 0?"
            self.warn(
                self.name, f"its last {IDLE_UPDATES} updates had norm zero, so the run learns nothing from it: {why}"
            )

    def refuse(self, node: str, why: str, points: int = 1) -> None:
        """Tell the run that something of another node was refused; enough points, and it is evicted."""
        self.wire.report(control_pb2.Report(warning=control_pb2.Warning(node=node, message=why, refused=points)))

    def diverged(self, node: str, why: str) -> None:
        """Another member of a section holds another history of it: only a view change can tell who is right."""
        self.warn(node, why)
        self.wire.report(control_pb2.Report(evidence=control_pb2.Evidence(peer=node, why=why, diverged=True)))

    def notes(self, values: dict[str, Any]) -> str:
        return json.dumps(values, separators=(",", ":")) if values else ""


def error_of(stopped: Stopped) -> FarflungError | None:
    """The error that a coordinator's stop means for this node, None if it is the ordinary end."""
    if stopped.again:
        return Parted(stopped.why, "start it again: it comes back under its key")
    if stopped.refused:
        hint = "`farflung join LINK` begins anew; if a person has put this node out, ask the one at the coordinator"
        return FarflungError(stopped.why, hint, 3)
    if stopped.failed:
        return FarflungError(stopped.why, "the coordinator's log says more", 4)
    return None
