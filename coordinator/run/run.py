r"""A running run: the shell around the membership machine.

Everything runs on one event loop, and code that handles a report or performs an effect never waits: a report becomes an
event of the machine (intake.py), and the machine's effects go into queues, the database and the event stream
(performing.py). Longer work runs as a task (tasks.py).

    report -> intake -> deciding (the machine) -> performing -> announcing -> streams -> orders
                 \-> step_reports -> database                \-> saving, dialling, tasks
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...job.data.facts import Facts
from ...job.schema import CheckCodec, Job
from ...job.shared import for_nodes
from ...proto import control_pb2 as pb
from ..membership import signals as s
from ..membership.members import Planner
from ..membership.rules import Rules
from ..membership.state import DONE, TRAINING, Known, State
from ..store.rows import NodeRow
from .attempt import attempt
from .context import RunContext
from .deciding import Deciding
from .durability.saving import Saving
from .effects.outcome import Outcome
from .effects.performing import Performer
from .effects.planning import Planning
from .effects.tasks import Tasks
from .ending import Ending
from .intake import Intake
from .judging.early_stop import EarlyStop
from .judging.verdicts import Verdicts
from .live_status import LiveStatus
from .nodes import second
from .nodes.advising import Advising
from .nodes.announcing import Announcing
from .nodes.attendance import Attendance
from .nodes.dialling import DialBack
from .nodes.round_trips import RoundTrips
from .nodes.sessions import Sessions
from .nodes.streams import Streams
from .people.commands import CommandHandler, held_in
from .people.operator import Operator
from .people.requests import Requests
from .reports.step_reports import StepReports
from .restart.restart_notes import RestartNotes
from .restart.restored import measured_before, restored
from .storing import Storing
from .warnings import Warnings

TICK_S = 0.2


class Run:
    """The parts of a run, and the methods that the service, the page and the start of a coordinator call.

    ``streams``: the open control streams. ``sessions``: the nodes that may open one. ``steps``: nodes' reports of
    steps. ``requests``: profiles and texts. ``saving``: checkpoints. ``outcome``: set when the run is over. ``live``:
    its status.
    """

    def __init__(
        self,
        context: RunContext,
        rules: Rules,
        planner: Planner | None = None,
        check_codec: CheckCodec | None = None,
    ) -> None:
        """``planner``: one that answers at once; without it each plan is searched for in another process."""
        self.context = context
        store, clock, job = context.store, context.clock, context.job
        self.streams = Streams(context.term)
        self.sessions = Sessions(store)
        self.outcome, self._tasks = Outcome(), Tasks()
        self.warn = Warnings(context).warn
        self.measured = measured_before(context)
        self.planning = Planning(context, self.measured, planner)
        self._trips = RoundTrips(self.streams.tell, clock)
        state = replace(
            restored(rules, store, context.checkpoints),
            held=held_in(store),
            paused=store.get("paused") or "",
            job=for_nodes(job).model_dump_json(),
        )
        self.deciding = Deciding(
            state,
            follow=job.updates.agreed,
            known=Known(self._trips.of, self.measured.rate_of, self.measured.step_s, self.measured.slowest_of),
            fetch_s=lambda name, plan: self.measured.fetch_s(name, plan, clock()),
            clock=clock,
            leads=lambda: store.leads,
            answer=self.planning.answer,
            moved=self._moved,
        )
        deciding, streams = self.deciding, self.streams
        self.planning.deciding = deciding
        self.steps = StepReports(context, deciding, self.measured, self.warn)
        self._announcing = Announcing(context, deciding, streams, self.sessions, self.steps)
        notes = RestartNotes(context, deciding)
        self.saving = Saving(context, deciding, streams, self.steps, self._announcing, notes)
        self.requests = Requests(context, deciding, streams, self.steps)
        handler = CommandHandler(store, self.feed, self._take_job, self._tell_revoked, check_codec)
        self.operator = Operator(
            context,
            deciding,
            handler,
            sessions=self.sessions,
            steps=self.steps,
            forget=lambda node: self._verdicts.refusals.forget(node),
            answer=self.planning.answer,
        )
        self._verdicts = Verdicts(context, deciding, streams, self.steps.work, self.warn, self.operator.command)
        self._intake = Intake(
            context=context,
            deciding=deciding,
            sessions=self.sessions,
            measured=self.measured,
            steps=self.steps,
            early=EarlyStop(context, self.steps, self.operator.command, self.warn),
            announcing=self._announcing,
            requests=self.requests,
            verdicts=self._verdicts,
            trips=self._trips,
            warn=self.warn,
        )
        self.live = LiveStatus(
            context=context,
            deciding=deciding,
            streams=streams,
            steps=self.steps,
            verdicts=self._verdicts,
            live=self._intake.live,
        )
        self._performer = Performer(
            context=context,
            deciding=deciding,
            streams=streams,
            sessions=self.sessions,
            steps=self.steps,
            announcing=self._announcing,
            saving=self.saving,
            dial_back=DialBack(self.sessions, streams, self._trips, clock),
            tasks=self._tasks,
            outcome=self.outcome,
            warn=self.warn,
            planner=planner,
        )
        self._storing = Storing(context, streams, self.steps, self._announcing, notes, self.warn)
        self.ending = Ending(context, deciding, streams, self._announcing, self.outcome)
        self._advising = Advising(streams, lambda: self.status(Path()), clock)
        store.put("phase", self.state.phase)
        store.put("why", self.state.why)

    # ---- the machine ---------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The machine's state."""
        return self.deciding.state

    def feed(self, event: s.Input) -> None:
        """Give the machine an event and perform the effects; does nothing once another coordinator may lead."""
        self.deciding.feed(event)

    def record(self, folder: Path) -> None:
        """Record the machine's events and effects in this folder from now on."""
        self.deciding.record(folder, self.context.term)

    def _moved(self, old: State, effects: list[s.Effect], why: str) -> None:
        """The machine has made a transition."""
        self.requests.check_text()
        self._performer.moved(old, effects, why)

    # ---- nodes ---------------------------------------------------------------------------------

    def admit(self, row: NodeRow) -> None:
        """A node passed the join checks: it may attend with its session."""
        self.measured.joined(row.name, json.loads(row.device or "{}"))
        self.context.store.links.forget(row.name)
        self.context.store.nodes.put(row)
        self.planning.prepare()
        self.sessions.admit(row)  # first, because the end of its old session must not end this one
        self.feed(s.Joined(row.name, row.session, row.address, bool(row.dials_out)))

    @property
    def present(self) -> list[str]:
        """The nodes that are in, or have just passed the join checks."""
        return [*self.state.nodes, *self.deciding.joining]

    def lives(self, name: str, asked: float) -> bool | None:
        """Whether the session of a node in the run is alive (second.py). ``asked``: a time of the run's clock."""
        stream = self.streams.get(name)
        return second.lives(None if stream is None else stream.heard, asked, self.context.clock())

    def attach(self, name: str, hello: pb.Hello) -> Attendance:
        """A control stream is open; an older one of the same session ends."""
        session, streams = hello.session, self.streams
        stream = streams.open(name, session, self.context.clock())
        self._announcing.views.attend(session, hello)
        streams.say(pb.Order(ledger=self.steps.stored_ledger), stream)
        if self.context.store.get("evicted") is not None:
            self._tell_revoked(stream)
        self.saving.tell_complete(stream)
        if name not in self.state.nodes:  # a session from before this coordinator's start
            row = self.sessions.comes_back(name)
            self.feed(s.Joined(name, session, row.address, bool(row.dials_out)))
        self._trips.came(name)
        self.ending.tell_late(stream)
        self.feed(s.Hello(name, session, hello.view))
        return stream

    def report(self, stream: Attendance, report: pb.Report) -> None:
        """Handle a node's report; ignored when its stream has ended or another coordinator may lead."""
        if self.streams.get(stream.name) is stream and self.context.store.leads:
            self._intake.take(stream, report)

    def detach(self, stream: Attendance, why: str) -> None:
        """A control stream ended."""
        if self.streams.closed(stream):
            if self.is_over:
                self.context.store.nodes.left(stream.name, stream.session, time.time(), self.state.why)
            if self.requests.profiling is not None:
                self.requests.profiling.gone(stream.name, stream.session, why)
            self.feed(s.StreamEnded(stream.name, stream.session, why))

    def _tell_revoked(self, to: Attendance | None = None) -> None:
        """Send the names of revoked certificates to all nodes, or to one that has just come."""
        self.streams.say(pb.Order(revoked=pb.Revoked(nodes=sorted(self.operator.handler.evicted))), to)

    def _take_job(self, job: Job, facts: Facts) -> None:
        """Replace the job by one that a person has changed with ``set``."""
        self.context.replace_job(job, facts)
        self.measured.job, self.measured.facts = job, facts
        if self.saving.mirror is not None:
            self.saving.mirror.keep = job.checkpoint.keep

    # ---- time ----------------------------------------------------------------------------------

    async def tick(self) -> None:
        """Tick until the run is over."""
        while not self.outcome.finished.is_set():
            self.pass_time()
            await asyncio.sleep(TICK_S)

    def pass_time(self) -> None:
        """Do everything that is due now."""
        if self.context.store.server is not None:
            self.context.store.server.check_lease()
        self.deciding.take_beats()
        self.feed(s.Tick(self.context.checkpoints.arrived, self.saving.lacking()))
        if said := self.saving.late(self.measured.slowest_of):
            self.warn("", said)
        self._trips.tick(self.streams)
        if self.trains and not self.deciding.is_planning:
            self.planning.tick(self._tasks.begin)
        self._performer.perform_due()
        attempt("recording what happens", self.deciding.write)
        self._storing.tick()
        if self.trains:
            self._advising.advise()

    # ---- the end -------------------------------------------------------------------------------

    async def stop(self, why: str, patience: float, failed: bool = False) -> None:
        """Ask every node to leave, and wait until they have, at most ``patience`` seconds."""
        self.deciding.end(why)
        self.requests.check_text()
        await self.ending.tell_everybody(why, patience, failed)
        await self.abandon()

    async def abandon(self) -> None:
        """End this process's part in the run; the nodes train on."""
        if self.context.store.leads:
            self.steps.store_work()
        self.streams.end_all()
        await self._tasks.cancel()
        self.planning.close()
        self.deciding.close()

    def status(self, state: Path) -> dict[str, Any]:
        """The run's status, with what only this process knows. ``state``: the state folder."""
        return self.live.record(state)

    @property
    def is_over(self) -> bool:
        """Whether the machine has ended."""
        return self.state.phase == DONE

    @property
    def trains(self) -> bool:
        """Whether a view trains now."""
        return self.state.phase == TRAINING
