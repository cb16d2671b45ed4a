"""The trainer's life: wait for a view, prepare for it, train until it ends; one thread, which owns the device.

The router (router.py) handles all events, between actions and while waiting. An order that ends the view is raised as
``ViewEnds`` at that point; state that must change atomically changes only after its commit point, so there is nothing
to clean up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NoReturn

import torch

from ... import compress
from ...job.data.facts import Facts
from ...job.schema import Job
from ...proto import control_pb2
from ...proto.errors import RunFailed
from ...scheduler import Plan
from ..context import NodeContext
from ..data.dataset import Dataset
from ..data.loader import Loader
from ..device.clock import StepClock
from ..device.limits import Owner
from ..device.tracing import Tracing
from ..models.definition import ModelDefinition
from ..pipeline.island import Island
from ..promises import Promises
from ..rounds.protocol.payloads import Refused
from ..state.files.checkpoint import Unreadable
from ..state.files.rests import Rests
from ..state.optimizers.make_optimizer import make_optimizer
from ..state.stage_state import StageState
from ..state.transfers.traffic import StateTraffic
from ..wire.api import Wire
from .changes.view_change import ViewChange
from .endings import ViewEnds
from .external.external_loop import OwnLoop
from .following.standby import Follower
from .holdings import Holdings
from .parting import Parting
from .resources import Resources, aqsgd_ends
from .router import Router
from .say_again import Unanswered
from .steps.view_training import ViewTraining
from .waiting import Waiting


class Trainer:
    """One node's trainer, from its first view to its last."""

    def __init__(
        self,
        wire: Wire,
        name: str,
        job: Job,
        facts: Facts,
        *,
        definition: ModelDefinition,
        open_data: Callable[[], Dataset],
        device: torch.device,
        emit: Callable[[dict[str, Any]], None] = lambda event: None,
        owner: Owner | None = None,
        island: Island | None = None,
        own: OwnLoop | None = None,
        rests: Rests | None = None,
        promises: Promises | None = None,
        allow_code: Sequence[str] | None = (),
    ) -> None:
        """``rests``: the files of rests beside checkpoints; None: none are kept. ``promises``: check every view; None:
        the coordinator is trusted. ``allow_code``: modules whose optimiser may be called (None: any)."""
        clock, owner = StepClock(worked=wire.worked), owner or Owner()
        self._opens = open_data
        self._loader: Loader | None = None
        context = NodeContext(name, job, facts, definition, device, wire, clock, emit, self.pump)
        resources = Resources(
            optimizer=own.optimizer if own is not None else make_optimizer(job, allow_code),
            data=cache(self._open_data),
            owner=owner,
            waiting=Waiting(wire.report, lambda: wire.arrived),
            tracing=Tracing(clock, device, lambda file, data: wire.store(0, file, data, 1, {})),
            ends=aqsgd_ends(job, facts, owner),
            island=island,
            own=own,
            rests=rests,
        )
        self.holdings = Holdings(context, resources, StateTraffic(context))
        self._said = Unanswered(wire.report)
        self._parting = Parting(self.holdings)
        self.router = Router(self.holdings, self._parting)
        self.change = ViewChange(self.holdings, self._said, self._read, promises)

    # ---- what others look at -----------------------------------------------------------------

    @property
    def context(self) -> NodeContext:
        """The context of the newest view that this node has prepared for."""
        return self.holdings.context

    @property
    def resources(self) -> Resources:
        """What this node trains with."""
        return self.holdings.resources

    @property
    def clock(self) -> StepClock:
        """Counts where a step's time goes."""
        return self.holdings.context.clock

    @property
    def state(self) -> StageState | None:
        """The state of this node's place; None: it has no place."""
        return self.holdings.state

    @property
    def training(self) -> ViewTraining | None:
        """The training in the present view; None: outside one, or as a spare."""
        return self.holdings.training

    @property
    def follower(self) -> Follower | None:
        """The place that this node follows as a spare."""
        return self.holdings.follower

    @property
    def step(self) -> int:
        """The last step that is finished here."""
        return self.holdings.step

    def pump(self, timeout: float = 0.0) -> None:
        """Handle all events that have arrived; wait up to ``timeout`` seconds for the first."""
        self.router.pump(timeout)

    def _open_data(self) -> Loader:
        self._loader = Loader(self._opens(), self.context.device)
        return self._loader

    def _read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        return self.router.read(name, offset, length)

    # ---- life ------------------------------------------------------------------------------

    def run(self) -> None:
        """Train until the coordinator orders a stop, or until this node has nothing to train and no coordinator.

        Raises:
            Stopped: with the coordinator's reason; ``failed`` or ``refused`` if it was not the end of the run.
        """
        try:
            self._run()
        finally:
            if self._loader is not None:
                self._loader.close()

    def _run(self) -> NoReturn:
        wire = self.context.wire
        wire.while_waiting = self.router.wait_for_the_coordinator
        while True:
            wire.doing = "waits for a view"
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
        wire = self.context.wire
        wire.doing = f"prepares for view {view.number}"
        try:
            self.change.prepare(view)
        except Unreadable as problem:
            self._cannot_read(view, problem)
        wire.doing = f"waits for the others of view {view.number}"
        self._wait_for(lambda order: order.WhichOneof("kind") == "start" and order.start.view == view.number)
        self._said.answered()
        self.change.start(view)
        self._show(view)
        if self.training is not None:
            self._parting.has_place()
            self.training.run()
            finished = control_pb2.Finished(view=view.number, step=self.step)
            finished.fingerprints.extend(self.change.fingerprints())
            self._said.say(control_pb2.Report(finished=finished))
        wire.doing = "is a spare" if self.training is None else "is done"
        self.resources.tracing.finish()
        self._serve()

    def _serve(self) -> None:
        """Answer peers until the next order, and follow a place as a spare."""
        while True:
            self._said.tick()  # repeats that this node has finished, or caught up
            self._parting.leave_if_alone()
            if self.follower is None:
                self.pump(1.0)
            else:
                self.follower.work()
                self.pump(1.0 if self.follower.failed else 0.05)

    def _flush(self, flush: control_pb2.Flush) -> None:
        """The view ends. The order of its start may have arrived just before, and not have been handled."""
        view = self.context.view
        orders = self.router.forget_orders()
        had_started = any(one.WhichOneof("kind") == "start" and one.start.view == view for one in orders)
        self.change.flush(flush, had_started)

    def _cannot_read(self, view: control_pb2.View, problem: Unreadable) -> None:
        """Tell the coordinator which file cannot be used. Another view, or the end of the run, follows."""
        self.change.cannot_read(problem.message)
        self.context.wire.doing = "cannot read a checkpoint"
        said = control_pb2.Unreadable(view=view.number, step=problem.step, file=problem.file, why=problem.why[:500])
        self._said.say(control_pb2.Report(unreadable=said))
        self._wait_for(lambda order: False)

    def _show(self, view: control_pb2.View) -> None:
        """Show the person at this node which place the view gives it."""
        plan = Plan.from_json(view.plan)
        self.context.emit(
            {
                "event": "view",
                "time": time.time(),
                "view": view.number,
                "pipelines": plan.pipelines,
                "stages": plan.stages,
                "spares": list(plan.spares),
                "codecs": plan.codecs,
                "why": plan.spares.get(self.context.name) or view.why,
            }
        )

    # ---- orders ----------------------------------------------------------------------------

    def _wait_for_view(self) -> control_pb2.View:
        view = self.context.view
        return self._wait_for(lambda order: order.WhichOneof("kind") == "view" and order.view.number > view).view

    def _wait_for(self, wanted: Callable[[control_pb2.Order], bool]) -> control_pb2.Order:
        """Wait for an order that is ``wanted``, the answer to the last report, which is repeated meanwhile."""
        while True:
            order = self.router.take_order(wanted)
            if order is not None:
                return order
            self.pump(1.0)
            self._said.tick()
