"""A running run: the shell around the membership machine. It carries orders and reports, and remembers.

Everything here happens on one event loop, and no method of :class:`Run` waits: a report is an input to the machine,
the machine's effects go into queues, the database and the event stream. Only dial-backs are tasks of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...job.schema import UNAGREED, CheckCodec, Facts, Job
from ...job.shared import for_nodes
from ...job.tokenizer import Tokenizer
from ...proto import control_pb2 as pb
from ...proto.border import printable
from ...proto.errors import FarflungError, Refused, RunFailed
from ...proto.patience import patience
from ...proto.trace import MOST_STEPS
from .. import events
from ..checkpoints.acceptance import Expected, expected, finished
from ..checkpoints.checkpoints import Checkpoints, Complete
from ..checkpoints.manifest import read_manifest
from ..data.facts import in_thread
from ..membership import signals as s
from ..membership.learnt import Kept, to_json, unsent_in
from ..membership.members import DONE, TRAINING, WAITING, Known, Planner, State
from ..membership.orders import Send, fingerprints_of, flushed_of, order_of
from ..membership.questions import Answer, Question, Unanswered, answered
from ..membership.resume import Rules
from ..membership.view_orders import ViewOrders
from ..observe.advice import seen, told
from ..observe.history import POINTS, History, Point
from ..observe.observed import Observed
from ..observe.status import status_of
from ..observe.useful_work import UsefulWork, ledger, write_ledger
from ..planning.measured import Measured
from ..planning.searches import Searches
from ..store.database import LeaseLost
from ..store.store import CheckpointRow, NodeRow, StepRow, Store, ViewRow
from ..trust.identity import digest
from . import second
from .attendance import Attendance, Live, idle_of, is_ready
from .border import ANYBODY, FASTEST_BPS, LONGEST_LATENCY_S, About, refused
from .commands import Command, Desk, held_in
from .deciding import Deciding
from .dialling import dial
from .fallback import answer
from .ledger import Progress
from .mirror import Mirror
from .profiling import Profiling
from .restored import restored
from .round_trips import RoundTrips
from .stand import reported_text, with_stand
from .texts import Text, check_wanted, ends_of
from .undone import MOST as UNDONE
from .undone import Undone
from .verdicts import Verdicts

log = logging.getLogger(__name__)

TICK_S = 0.2
DIAL_S = 2.0
"""How long a node may take to answer when it is dialled, beside a few round trips."""
RETURN_S = 2.0
"""How long one that nobody can dial may take to open its control stream again, beside a few round trips."""
WORK_S = 10.0
"""How often the ledger of useful work is stored."""
ADVICE_S = 10.0
"""How often a node is told of what use it is."""
_ADVISED = 200
"""Nodes up to which; in a run of five times as many, five times as rarely."""
_SAME_WARNING_S = 10.0
_MOST_WARNINGS = 20
"""Of one node within that time."""
_ACKNOWLEDGE_S = 1.0
_COME_BACK_S = 5.0
"""How long the end of a run waits for nodes whose control stream is broken just then."""
_NOT_BACK = "it has not come back since the coordinator started again"
_VIEWS_KEPT = 8


class Run:
    """Holds the machine's state and performs its effects.

    ``finished`` is set when the run is over; then ``result`` is the ``done`` event, or ``failure`` an error.
    """

    def __init__(
        self,
        job: Job,
        facts: Facts,
        store: Store,
        checkpoints: Checkpoints,
        emit: events.Emit,
        rules: Rules,
        term: int,
        planner: Planner | None = None,
        clock: Callable[[], float] = time.monotonic,
        check_codec: CheckCodec | None = None,
    ) -> None:
        self.job, self.facts, self.store, self.checkpoints, self.emit = job, facts, store, checkpoints, emit
        self.term, self._clock = term, clock
        devices = {row.name: json.loads(row.device or "{}") for row in store.nodes()}
        links = {(source, target): (latency, rate) for source, target, latency, rate in store.links()}
        self.measured = Measured(job, facts, devices, links)
        self._planner = planner
        self.searches = Searches()
        self._stored_kept: Kept | None = None
        self._stored_reported: Mapping[str, int] | None = None
        self._reported_at = -math.inf
        self.trips = RoundTrips(self._order, clock)
        state = replace(
            restored(rules, store, checkpoints),
            held=held_in(store),
            paused=store.get("paused") or "",
            job=for_nodes(job).model_dump_json(),
        )
        self.deciding = Deciding(
            state,
            job.updates.agreed,
            Known(self.trips.of, self.measured.rate_of, self.measured.step_s),
            lambda name, plan: self.measured.fetch_s(name, plan, clock()),
            clock,
            lambda: store.leads,
            self._answer,
            self._moved,
        )
        self.desk = Desk(store, self.feed, self._take_job, self._tell_revoked, check_codec)
        self.finished = asyncio.Event()
        self.result: events.Event | None = None
        self.failure: RunFailed | None = None
        self.live: dict[str, Live] = {}
        self.mirror: Mirror | None = None
        """Carries checkpoints to a remote target."""
        self.profiling: Profiling | None = None
        self.text: Text | None = None
        """What a pipeline writes."""
        self._texts = 0
        self.observed = Observed()
        self.history = History((Point(*row) for row in store.curve(POINTS)), store.evals())
        self._progress = Progress(job.train.batch if job.updates.mode == "gradient" else 0)
        if self.state.view is not None:
            known, evaluated = store.steps(1), store.evals(1)
            view = self.state.view
            finished = max(view.position.step, known[-1].step if known else 0)
            self._progress.restore(view.number, view.plan, finished, evaluated[-1].step if evaluated else 0)
        self._announced = [self.state.view] if self.state.view is not None else []
        """Those announced lately: a node may still send files of one that is over."""
        self._began: dict[int, float] = {}
        """When each of them was, by this clock."""
        self._ends = 0
        """The last step that this run ever was to end with: who has heard of it may report on."""
        self._acknowledged, self._acknowledged_at = self._progress.ledger, -math.inf
        self.verdicts = Verdicts(self)
        self.work = UsefulWork(store.works(), store.scores())
        self._worked_at = clock()
        self._behind = self._gave_up = False
        self._held: s.SendView | None = None
        """A view that waits for the disk."""
        self._undone = Undone()
        self._pending: dict[str, pb.StepDone] = {}
        """Reports of a step of which a flushed node did not know whether it is committed."""
        self._streams: dict[str, Attendance] = {}
        self._views = ViewOrders()
        self._deserted = asyncio.Event()
        self._absent: set[str] = set()
        """Nodes that were not there when everybody was told that the run is over."""
        self._failed = False
        self._sessions = {row.name: row for row in store.nodes() if row.left_at is None}
        self._tasks: set[asyncio.Task[None]] = set()
        self._noticed = ""
        self._advised = -math.inf
        self._said: dict[str, pb.Advice] = {}
        self._warned: dict[tuple[str, str], float] = {}
        self._bytes = int(store.get("bytes") or 0)
        store.put("phase", self.state.phase)
        store.put("why", self.state.why)

    async def _answer(self, question: Question) -> Answer:
        """A plan, worked out with what is known now."""
        if self._planner is not None:
            return answered(self._planner, question)
        return await self.searches.answer(self.measured.search(question, self.state.nodes, self._clock()))

    # ---- people ------------------------------------------------------------------------------

    def command(self, command: Command, answers: tuple[tuple[Question, Answer], ...] = ()) -> str:
        """Do what a person wants; the answer in a sentence. Refused or JobError, with a hint, say why not; Unanswered:
        that takes a plan, which is to be among ``answers``."""
        if self.is_over:
            raise Refused(f"the run is over: {self.state.why}", "start the coordinator again to go on with it")
        if command.kind == "forget" and command.node in self.present:
            raise Refused(f"{command.node} is in the run", "a name is freed when its node is gone")
        state = replace(self.state, answers=answers)
        answer = self.desk.take(command, self.deciding.machine, state, self.job, self.facts, self._reached())
        if command.kind in ("readmit", "forget"):
            self.verdicts.refusals.forget(command.node)
        if command.kind == "forget":
            self._sessions.pop(command.node, None)
        log.info("%s", answer)
        self.emit(events.event("notice", message=answer, node=command.node))
        return answer

    async def commanded(self, command: Command) -> str:
        """``command``, after working out whatever plan it takes to say yes or no."""
        answers: tuple[tuple[Question, Answer], ...] = ()
        while True:
            try:
                return self.command(command, answers)
            except Unanswered as wanted:
                answers = (*answers, (wanted.question, await self._answer(wanted.question)))

    def profile(self, steps: int) -> Profiling:
        """Let the nodes that train record their next steps. Refused says why not."""
        view = self.state.view
        if not self.trains or view is None:
            raise Refused(f"the run does not train now: {self.state.why}", "farflung status says more; try again later")
        if self.profiling is not None:
            raise Refused("another profile of this run is being taken", "wait until it is written")
        if not 1 <= steps <= MOST_STEPS:
            raise Refused(f"{steps} steps cannot be recorded", f"--steps: 1 to {MOST_STEPS}")
        last = self._reached()
        nodes = {name: self._streams[name].session for name in view.plan.nodes if name in self._streams}
        self.profiling = Profiling(nodes, steps, last, self._step_seconds(), self._order)
        return self.profiling

    def write(self, request: pb.GenerateRequest, tokenizer: Tokenizer) -> Text:
        """Let a pipeline write a text while it trains. Refused says why not."""
        check_wanted(request, self.job)
        view = self.state.view
        if not self.trains or view is None:
            raise Refused(
                f"the run does not train now: {self.state.why}",
                "take the newest checkpoint: --through model or --through layers",
            )
        if self.text is not None:
            raise Refused("another text of this run is being written", "try again when it is done")
        self._texts += 1
        self.text = Text(
            self._texts,
            view.number,
            tuple(dict.fromkeys(view.plan.pipelines[0])),
            request,
            tokenizer,
            ends_of(self.job, tokenizer),
            self._step_seconds(),
            self._order,
        )
        return self.text

    def _step_seconds(self) -> float:
        """Of the last step; 1 before the first."""
        known = self.store.steps(1)
        return known[-1].seconds if known else 1.0

    def end_text(self) -> None:
        """Nobody waits for the text any more."""
        if self.text is not None:
            self.text.end()
            self.text = None

    def _check_text(self) -> None:
        """A text ends with the view whose nodes write it."""
        view = self.state.view
        if self.text is not None and (not self.trains or view is None or view.number != self.text.view):
            self.text.fail(self.state.why)

    def tell(self, names: Collection[str], order: pb.Order) -> None:
        """An order to those of these who attend."""
        for name in names:
            self._order(name, order)

    def _order(self, name: str, order: pb.Order) -> None:
        if name in self._streams:
            order.term = self.term
            self._streams[name].queue.put_nowait(order)

    def _take_job(self, job: Job, facts: Facts) -> None:
        self.job, self.facts = job, facts
        self.measured.job, self.measured.facts = job, facts
        self.store.put("job", job.model_dump_json())
        self.store.put("facts", facts.model_dump_json())
        self.checkpoints.keep = job.checkpoint.keep
        if self.mirror is not None:
            self.mirror.keep = job.checkpoint.keep

    def _tell_revoked(self, to: Attendance | None = None) -> None:
        """The names whose certificates count no more, to everybody or to a node that has just come."""
        order = pb.Order(term=self.term, revoked=pb.Revoked(nodes=sorted(self.desk.evicted)))
        for stream in [to] if to else self._streams.values():
            stream.queue.put_nowait(order)

    # ---- nodes -------------------------------------------------------------------------------

    def admit(self, row: NodeRow) -> None:
        """A node passed the join checks: it may attend with its session."""
        self.measured.joined(row.name, json.loads(row.device or "{}"))
        self.store.forget_links(row.name)
        self.store.put_node(row)
        if self._planner is None:
            self.searches.prepare()
        self._sessions[row.name] = row  # first: what ends its old session must not end this one
        self.feed(s.Joined(row.name, row.session, row.address, bool(row.dials_out)))

    @property
    def present(self) -> list[str]:
        """Who is in, or passed the join checks a moment ago."""
        return [*self.state.nodes, *self.deciding.joining]

    def lives(self, name: str, asked: float) -> bool | None:
        """Whether the session of a node that is in goes on: as of ``second.lives``. ``asked``: a time of this clock."""
        stream = self._streams.get(name)
        return second.lives(None if stream is None else stream.heard, asked, self._clock())

    @property
    def now(self) -> float:
        """The clock by which nodes are heard of."""
        return self._clock()

    def knows(self, name: str, session: str, secret: str) -> bool:
        """Whether this is a session of the run, and its secret."""
        row = self._sessions.get(name)
        return row is not None and row.session == session and row.secret_hash == digest(secret)

    def meets(self, name: str, session: str) -> bool:
        """Whether this is a session of the run, of a node that nobody can dial: others may meet it at the relay."""
        row = self._sessions.get(name)
        return row is not None and row.session == session and bool(row.dials_out)

    def attach(self, name: str, hello: pb.Hello) -> Attendance:
        """A control stream is open; an older one of the same session ends."""
        old = self._streams.get(name)
        if old is not None:
            old.queue.put_nowait(None)
        session = hello.session
        stream = self._streams[name] = Attendance(name, session, self._clock())
        self._views.attend(session, hello)
        self._deserted.clear()
        stream.queue.put_nowait(pb.Order(term=self.term, ledger=self._progress.ledger if self._stored else None))
        if self.store.get("evicted") is not None:
            self._tell_revoked(stream)
        self._tell_complete(stream)
        if name not in self.state.nodes:  # from before this coordinator's start
            row = self._sessions[name] = replace(self._sessions[name], left_at=None)
            self.store.put_node(row)
            self.feed(s.Joined(name, session, row.address, bool(row.dials_out)))
        self.trips.came(name)
        self._absent.discard(name)
        if self.is_over:  # it was not there when the others were told
            failed = self._failed or self.failure is not None
            order = order_of(s.SendStop((name,), self.state.why, failed), self.term)
            stream.queue.put_nowait(order)
        self.feed(s.Hello(name, session, hello.view))
        return stream

    def detach(self, stream: Attendance, why: str) -> None:
        """A control stream ended."""
        if self._streams.get(stream.name) is stream:
            del self._streams[stream.name]
            self._check_deserted()
            if self.is_over:
                self.store.node_left(stream.name, stream.session, time.time(), self.state.why)
            if self.profiling is not None:
                self.profiling.gone(stream.name, stream.session, why)
            self.feed(s.StreamEnded(stream.name, stream.session, why))

    def report(self, stream: Attendance, report: pb.Report) -> None:
        """Whatever a node says."""
        name, session, kind = stream.name, stream.session, report.WhichOneof("kind")
        if self._streams.get(name) is not stream or not self.store.leads:
            return
        # Of a beat nothing depends on what the run knows, and a thousand come in a second.
        if why := refused(report, ANYBODY if kind == "heartbeat" else self._about(name)):
            self.warn(name, why)
            return
        if kind == "heartbeat":
            beat = report.heartbeat
            stream.heard = self._clock()
            self.live[name] = Live(printable(beat.doing), beat.trainer_age)
            ready = is_ready(beat, self._clock() - stream.since)
            self.deciding.heard(name, session, ready, beat.moved, idle_of(beat))
        elif kind == "links":
            self._measured(name, session, report.links)
        elif kind == "flushed":
            if report.flushed.HasField("pending"):
                self._pending[name] = report.flushed.pending
            self.feed(flushed_of(name, session, report.flushed))
        elif kind == "prepared":
            self._views.prepared(session, report.prepared.view)
            prints = fingerprints_of(report.prepared.fingerprints)
            bases = {one.layer: one.content for one in report.prepared.bases}
            self.feed(s.Prepared(name, session, report.prepared.view, prints, bases))
        elif kind == "waits":
            waits = report.waits
            self.feed(s.Waits(name, session, waits.view, tuple(waits.peers), waits.moves))
        elif kind == "unreadable":
            said = report.unreadable
            voice = self._sessions[name].ticket if name in self._sessions else ""
            self.feed(s.Unreadable(name, session, said.view, said.file, printable(said.why), voice))
        elif kind == "caught_up":
            view, failed = report.caught_up.view, printable(report.caught_up.failed)
            self.feed(s.CaughtUp(name, session, view, failed))
        elif kind == "kept":
            rest = report.kept
            self.feed(s.Kept(name, session, rest.step, rest.view, rest.norm, rest.moved))
        elif kind == "clock":
            self.trips.answered(name, report.clock)
            if self.profiling is not None:
                self.profiling.answered(name, report.clock)
        elif kind == "written":
            if self.text is not None:
                self.text.wrote(name, report.written)
        elif kind == "step":
            self._step(name, session, report.step)
        elif kind == "eval":
            self._check_loss(report.eval)
            row = self._progress.evaluation(name, report.eval, time.time())
            if row is not None:
                self.store.put_eval(row)
                self.history.evaluation(row)
                self.emit(events.evaluation(row))
        elif kind == "evidence":
            lost = report.evidence
            self.feed(s.Accused(name, session, lost.peer, printable(lost.why), lost.diverged, lost.mended))
        elif kind == "warning":
            warning: Any = report.warning  # grpc-stubs and the builtin share the name Warning
            self.warn(warning.node if warning.node in self.measured.devices else name, printable(warning.message, 1000))
            if warning.refused and warning.node != name:
                tickets = {who: row.ticket for who, row in self._sessions.items()}
                self.verdicts.refused(name, warning.node, warning.refused, tickets)
        elif kind == "scores":
            self.verdicts.scored(name, report.scores)
        elif kind == "leaving":
            leaving = report.leaving
            self.feed(s.Leaving(name, session, printable(leaving.why) or "leaving", leaving.stays, leaving.asked))
        elif kind == "back":
            self.feed(s.Back(name, session))
        elif kind == "goodbye":
            self.feed(s.Left(name, session, printable(report.goodbye.why) or "goodbye"))
        elif kind == "finished":
            done = report.finished
            self.feed(s.Finished(name, session, done.view, done.step, fingerprints_of(done.fingerprints)))

    def warn(self, node: str, message: str) -> None:
        """Tell people, the same thing at most every 10 s, and of one node not more than they can read."""
        now, key = self._clock(), (node, message)
        self._warned = {one: when for one, when in self._warned.items() if now - when < _SAME_WARNING_S}
        if key in self._warned or (node and sum(one == node for one, _ in self._warned) >= _MOST_WARNINGS):
            return
        self._warned[key] = now
        self.store.add_warning(time.time(), node, message)
        self.emit(events.event("warning", message=message, node=node))

    def _measured(self, name: str, session: str, links: pb.Links) -> None:
        found = {}
        for link in links.links:
            source, latency, rate = getattr(link, "from") or name, link.latency_s, link.bandwidth_bps
            known = name in (source, link.to) and {source, link.to} <= self.measured.devices.keys()
            if known and 0 <= latency <= LONGEST_LATENCY_S and 0 <= rate <= FASTEST_BPS:
                found[source, link.to] = (latency, rate)
        self.measured.links.update(found)
        self.store.put_links(found, time.time())
        self.feed(s.Measured(name, session))

    def _about(self, name: str) -> About:
        """What a report of a node is held against."""
        view, began = self.state.view, None
        self._ends = max(self._ends, self._last_step(), self.facts.steps)
        if view is not None:
            began = self._began.get(view.number)
        language = self.job.model.build is None and self.job.model.parameters is None
        return About(
            name,
            self.measured.devices.keys(),
            self._ends,
            len(self.facts.profile.layers),
            self.facts.vocabulary,
            view,
            None if began is None else self._clock() - began,
            self.job.train.batch,
            self.facts.context if language else 0,
        )

    def _check_loss(self, report: pb.StepDone | pb.EvalDone) -> None:
        if not math.isfinite(report.loss_sum):
            self.warn("", "the loss is not finite any more: go back to an older checkpoint with another learning rate")

    def _step(self, name: str, session: str, report: pb.StepDone) -> None:
        self._check_loss(report)
        if self._progress.is_new(name, report):
            self._bytes += report.bytes_updates + report.bytes_activations + report.bytes_other
            self.observed.step(name, report, self._clock())
            self.measured.step(name, report, self._clock())
            self._worked(name)
        self.deciding.stepped(s.StepFinished(name, session, report.view, report.step, report.seconds))
        self._keep_steps(self._progress.step(name, report, time.time()))

    def _worked(self, name: str) -> None:
        """A step of a node counts in the ledger, with the samples that the plan gave its pipeline."""
        view = self.state.view
        if view is not None and name in view.plan.nodes:
            pipeline = view.plan.pipeline_of(name)
            self.work.step(name, view.plan.microbatches[pipeline] * self.job.train.microbatch, time.time())

    def keep_work(self) -> None:
        """Store what has come into the ledger, and write its file anew beside the database."""
        self.store.put_work(*self.work.unsaid())
        if isinstance(self.store.place, Path):
            with contextlib.suppress(OSError):  # a full disk is said elsewhere; the database has it all
                write_ledger(self.store.place, ledger(self.store.works(), self.store.scores()))

    def _last_step(self) -> int:
        """The run's last step, as the view counts it: samples that are trained again take steps of their own."""
        view = self.state.pinned or self.state.view
        if self.job.run.steps is not None or view is None:
            return self.facts.steps
        return view.position.last_step((self.job.run.epochs or 1) * self.facts.samples, self.job.train.batch)

    def _keep_steps(self, rows: list[StepRow]) -> None:
        for row in rows:
            self.store.put_step(row)
            self.measured.claims.step(self._clock())
            self.history.step(row, self.observed.parts_of_step(row.step))
            self.store.put("bytes", str(self._bytes))
            self.emit(events.step(row, self._last_step()))

    # ---- the machine -------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The machine's."""
        return self.deciding.state

    def feed(self, event: s.Input) -> None:
        """Give the machine an input and do what it asks for; nothing once another coordinator may lead."""
        self.deciding.feed(event)

    @property
    def is_planning(self) -> bool:
        """Whether an event, and those that came after it, wait for a plan to be worked out."""
        return self.deciding.is_planning

    def record(self, folder: Path) -> None:
        """Keep what the machine is given and does in this folder, from now on."""
        self.deciding.record(folder, self.term)

    def _moved(self, old: State, effects: list[s.Effect], why: str) -> None:
        """The machine has made a transition."""
        before = (old.phase, old.why)
        if (self.state.phase, self.state.why) != before:
            self.store.put("phase", self.state.phase)
            self.store.put("why", self.state.why)
        if self.state.phase != before[0]:
            self.emit(events.phase(self.state.phase, self.state.why))
        if why:
            log.info("%s", why)
            said = any(isinstance(effect, s.Say) for effect in effects)
            if self.state.phase == WAITING and not said and why != self._noticed:
                self._noticed = why
                self.emit(events.event("notice", message=why, node=""))
        self._check_text()
        self._perform_all(effects)

    def _perform_all(self, effects: Iterable[s.Effect]) -> None:
        """One by one: what fails is tried again later, what comes after it is done now. LeaseLost: nothing is."""
        for effect in effects:
            try:
                self._perform(effect)
            except LeaseLost:
                raise
            except Exception as error:
                self._failed_to(effect, error)

    def _failed_to(self, effect: s.Effect, error: Exception) -> None:
        """An effect could not be performed."""
        dropped = self._undone.dropped
        self._undone.add(effect, self._clock())
        what = type(effect).__name__
        log.error("%s could not be done", what, exc_info=error)
        self._try("a warning", self.warn, "", f"{what} failed ({error}); it is tried again, the run goes on")
        if self._undone.dropped > dropped:
            most = f"more than {UNDONE} effects wait to be done again: the oldest is given up"
            self._try("a warning", self.warn, "", most)

    def _try(self, what: str, do: Callable[..., object], *arguments: Any) -> None:
        """Something beside the run: it may fail, and then the log says so."""
        try:
            do(*arguments)
        except LeaseLost:
            raise
        except Exception:
            log.exception("%s failed", what)

    def expects(self, sender: tuple[str, str], shard: pb.Shard) -> Expected:
        """What a checkpoint's file has to be. NotAccepted: why its sender (name, session) may not send it."""
        last = max(self._last_step(), self.facts.steps)
        which = shard.step, shard.file, shard.view
        return expected(self._announced, self.job, self.facts, self._reached(), last, sender, *which)

    def _reached(self) -> int:
        """The step that the view has finished, as more than one of its nodes say."""
        view = self.state.view
        if view is None:
            return 0
        stored = self._progress.ledger
        begin = max(view.position.step, stored.step if stored.view == view.number else 0)
        return finished(view.plan, begin, self.state.reported, self.job)

    def checkpoint(self, complete: Complete) -> None:
        """A checkpoint is complete."""
        position = complete.position
        row = CheckpointRow(
            complete.step, str(complete.path), position.cursor, json.dumps(list(position.redo)), time.time()
        )
        self.store.put_checkpoint(row)
        self._try("forgetting old checkpoints", self.forget_checkpoints)
        if self.mirror is not None:
            self.mirror.wake()
        else:
            self.emit(events.event("checkpoint", step=complete.step, path=str(complete.path)))
        self._put_kept()
        self.feed(s.CheckpointComplete(position, unsent_in(read_manifest(complete.path))))
        self._tell_complete()

    def not_stored(self, step: int, why: str) -> None:
        """The disk did not take a file of a checkpoint."""
        self.feed(s.NotStored(step, why))

    def _tell_complete(self, to: Attendance | None = None) -> None:
        """What nodes keep beside the newest complete checkpoint has to stay; to everybody or to a node that has just
        come."""
        newest = self.state.unsent
        if newest is not None:
            order = pb.Order(term=self.term, complete=pb.Kept(step=newest.step, view=newest.view))
            for stream in [to] if to else self._streams.values():
                stream.queue.put_nowait(order)

    def _put_kept(self) -> None:
        """Remember what nodes keep on their own disks, for a start after everything has ended."""
        if self.state.kept is not self._stored_kept:
            self._stored_kept = self.state.kept
            self.store.put("kept", to_json(self.state.kept))

    def _put_reported(self) -> None:
        """Remember how far each pipeline has said that it is, about once a second: what it learnt must not be learnt
        again when it and this coordinator end together."""
        view, now = self.state.view, self._clock()
        if self.job.updates.mode != "delta" or view is None or now - self._reported_at < _ACKNOWLEDGE_S:
            return
        if self.state.reported is not self._stored_reported:
            self._stored_reported, self._reported_at = self.state.reported, now
            self.store.put("reported", reported_text(view, self.state.reported))

    def forget_checkpoints(self) -> None:
        """Those that are neither in the folder nor at the target any more."""
        there = self.mirror.there if self.mirror else set()
        for old in self.store.checkpoints():
            if self.checkpoints.path(old.step) is None and old.step not in there:
                self.store.forget_checkpoint(old.step)

    async def tick(self) -> None:
        """Let time pass, until the run is over."""
        while not self.finished.is_set():
            self.pass_time()
            await asyncio.sleep(TICK_S)

    def pass_time(self) -> None:
        """What is due now."""
        if self.store.server is not None:
            self.store.server.check_lease()
        self.deciding.take_beats()
        if not self.is_planning:
            self.feed(s.Tick(self.checkpoints.arrived))
        self.trips.tick(self._streams)
        if self.trains and not self.is_planning:
            news, links = self.measured.news(self._clock())
            for pair, found in links.items():
                self.store.put_link(*pair, *found, time.time())
            if news:
                self.feed(s.Replan(news))
        self._perform_all(self._undone.due(self.state, self._clock()))
        self._try("recording what happens", self.deciding.write)
        self._try("catching up", self._catch_up)
        self._try("acknowledging reports", self._acknowledge)
        self._try("remembering what nodes keep", self._put_kept)
        self._try("remembering what was reported", self._put_reported)
        if self._clock() - self._worked_at >= WORK_S:
            self._worked_at = self._clock()
            self._try("storing the ledger of useful work", self.keep_work)
        self._advise()

    def _catch_up(self) -> None:
        """Store what had to wait for room on the disk; nobody hears of a view before it is stored."""
        why = self.store.catch_up()
        if why and not self._behind:
            self.warn("", f"{why}; training goes on, view changes wait until it can be written")
        elif why and self.store.given_up and not self._gave_up:
            self._gave_up = True
            self.warn("", f"{why}; there is no more room for what waits: the oldest steps and warnings are given up")
        elif self._behind and not why:
            self.emit(events.event("notice", message=f"{self.store.name} takes what had to wait", node=""))
        self._behind = bool(why)
        if self._held is not None and not why:
            held, self._held = self._held, None
            self._send(held, held.to)

    @property
    def _stored(self) -> bool:
        """Whether all that was heard is in the database."""
        return self.store.leads and not self.store.is_behind

    def _acknowledge(self) -> None:
        """Tell the nodes which of their reports are stored; the others they say again to the next coordinator."""
        ledger, now = self._progress.ledger, self._clock()
        if ledger != self._acknowledged and now - self._acknowledged_at >= _ACKNOWLEDGE_S and self._stored:
            self._acknowledged, self._acknowledged_at = ledger, now
            for stream in self._streams.values():
                stream.queue.put_nowait(pb.Order(term=self.term, ledger=ledger))

    def _advise(self) -> None:
        """Tell every node how it does, now and then and when that has changed."""
        now = self._clock()
        pause = max(ADVICE_S, ADVICE_S * len(self._streams) / _ADVISED)
        if now - self._advised < pause or not self.trains:
            return
        self._advised = now
        try:
            record = self.status(Path())
            known = seen(record)
        except Exception:  # whatever it is, training does not end for want of good advice
            log.exception("no advice for the nodes")
            return
        for stream in self._streams.values():
            found = pb.Advice(**told(record, stream.name, known))
            if self._said.get(stream.session) != found:
                self._said[stream.session] = found
                stream.queue.put_nowait(pb.Order(term=self.term, notice=pb.Notice(advice=found)))
        self._said = {one.session: self._said[one.session] for one in self._streams.values()}

    async def saved(self) -> None:
        """Wait until the checkpoint that is wanted is complete, or cannot be made because nobody trains any more."""
        while self.state.saving and self.state.phase not in (WAITING, DONE):  # noqa: ASYNC110
            await asyncio.sleep(TICK_S / 4)

    async def stop(self, why: str, patience: float, failed: bool = False) -> None:
        """Ask every node to leave, and wait until they have, at most ``patience`` seconds."""
        self.deciding.end(why)
        self._check_text()
        self._failed = failed
        everybody = tuple(self._streams)
        self._send(s.SendStop(everybody, why, failed), everybody)
        self._absent = set(self.state.nodes) - set(everybody)  # on their way back: else they would try for ever
        deadline = self._clock() + min(patience, _COME_BACK_S)
        while self._absent and self._clock() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(TICK_S / 4)
        self._check_deserted()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._deserted.wait(), patience)
        await self.abandon()

    async def abandon(self) -> None:
        """End what this process does for the run; the nodes train on."""
        if self.store.leads:
            self.keep_work()
        for stream in self._streams.values():
            stream.queue.put_nowait(None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.searches.close()
        self.deciding.close()

    def _perform(self, effect: s.Effect) -> None:
        if isinstance(effect, s.Ask):
            if self._planner is not None:
                self.deciding.planned(effect, answered(self._planner, effect.question))
            else:
                self._begin_task(self.deciding.ask(effect))
        elif isinstance(effect, s.SendView):
            self._announce(effect)
        elif isinstance(effect, s.SendMeasure):
            self._send(effect, (effect.to,))
        elif isinstance(effect, (s.SendFlush, s.SendStart, s.SendStop, s.SendNotice, s.SendLeave)):
            self._send(effect, effect.to)  # first: whoever it is for waits
            if isinstance(effect, s.SendStart) and self.store.get("began") is None:
                if not self.job.updates.agreed:
                    self.warn("", f"updates.agreed = false: {UNAGREED}")
                self.store.put("began", str(time.time()))
        elif isinstance(effect, s.Dial):
            self._begin_task(self._dial(effect))
        elif isinstance(effect, (s.LookAt, s.PutAside)):
            self._begin_task(self._fall_back(effect))
        elif isinstance(effect, s.Fence):
            self._fence(effect)
        elif isinstance(effect, s.Say):
            self._say(effect)
        elif isinstance(effect, s.Finish):
            self.keep_work()
            self.result = self._done(effect.step)
            self.finished.set()
        elif isinstance(effect, s.Fail):
            self.failure = RunFailed(effect.why, effect.hint)
            self.finished.set()

    def _send(self, effect: Send, to: tuple[str, ...]) -> None:
        order = order_of(effect, self.term)
        if isinstance(effect, s.SendView):
            order.view.evaluate = self._progress.lacks_evaluation(self.job.train.eval_every)
        for name in to:
            stream = self._streams.get(name)
            if stream is not None:
                stream.queue.put_nowait(self._views.order(stream.session, order) if order.HasField("view") else order)

    def _announce(self, effect: s.SendView) -> None:
        """Remember a view, then tell its members. A view that is only said again is known already."""
        view = effect.view
        if self._held is not None and self._held.view.number == view.number:
            self._held = replace(self._held, to=self._held.to + effect.to)
            return
        known = self.store.last_view()
        if known is None or known.number < view.number:
            position = view.position
            members = json.dumps([[one.name, one.session, one.address, one.dials_out] for one in view.members])
            row = ViewRow(
                view.number,
                view.plan.to_json(),
                members,
                position.step,
                position.cursor,
                json.dumps(list(position.redo)),
                view.checkpoint,
                view.why,
                time.time(),
            )
            self.store.put("steps", str(self._last_step()))
            self.measured.enter(view.plan, self._clock())
            for name, done in self._pending.items():
                if done.step == position.step and view.checkpoint < 0:  # committed after all: its report counts
                    self._keep_steps(self._progress.step(name, done, time.time()))
            self._pending = {}
            self._keep_steps(self._progress.enter(view.number, view.plan, position.step, time.time()))
            self.store.put("stand", with_stand(self.store.get("stand") or "", view))
            self.store.put_view(row)
            self._announced = [*self._announced[1 - _VIEWS_KEPT :], view]
            kept = {one.number: self._began[one.number] for one in self._announced if one.number in self._began}
            self._began = {**kept, view.number: self._clock()}
            self._note_absent()
            self.history.back_to(position.step)
            self.checkpoints.discard_after(position.step, view.number)
            self.emit(events.view(view, self.job))
        if self.store.is_behind:
            self._held = effect
        else:
            self._send(effect, effect.to)

    def _note_absent(self) -> None:
        """Nodes of an earlier start that a view begins without; their sessions may still come back."""
        for name, row in self._sessions.items():
            if name not in self.state.nodes and row.left_at is None:
                self._sessions[name] = replace(row, left_at=time.time())
                self.store.node_left(name, row.session, time.time(), _NOT_BACK)

    def _fence(self, effect: s.Fence) -> None:
        self._views.left(effect.session)
        stream = self._streams.get(effect.name)
        if stream is not None and stream.session == effect.session:
            del self._streams[effect.name]
            self._check_deserted()
            stream.queue.put_nowait(None)
        row = self._sessions.get(effect.name)
        if row is not None and row.session == effect.session:
            self.store.node_left(effect.name, effect.session, time.time(), effect.why)
            del self._sessions[effect.name]

    def _check_deserted(self) -> None:
        if not self._streams:
            self._deserted.set()

    def _say(self, effect: s.Say) -> None:
        if effect.kind == "warning":
            self.warn(effect.node, effect.why)
        elif effect.kind == "waiting":
            self.emit(events.event("notice", message=effect.why, node=effect.node))
        else:
            self.emit(events.event(effect.kind, node=effect.node, why=effect.why))

    def _begin_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def _fall_back(self, effect: s.LookAt | s.PutAside) -> None:
        """Read a checkpoint again, or put it aside, and tell the machine which one is left."""
        target = self.mirror.target if self.mirror is not None else None
        try:
            known = {row.step for row in self.store.checkpoints()} if self.store.server is not None else None
            found = await in_thread(answer, effect, self.checkpoints, target, known)
        except FarflungError as error:
            self._failed_to(effect, error)
            return
        if isinstance(found, s.CheckpointLost):
            if self.mirror is not None and isinstance(effect, s.PutAside):
                self.mirror.there = self.mirror.there - {effect.step}
            for row in self.store.checkpoints():
                if row.step > found.position.step:
                    self.store.forget_checkpoint(row.step)
        self.feed(found)
        self._tell_complete()

    async def _dial(self, effect: s.Dial) -> None:
        row = self._sessions.get(effect.name)
        if row is not None and row.dials_out:
            why = await self._await_return(effect)
        else:
            why = await dial(effect.address, patience(DIAL_S, self.trips.of(effect.name)))
        self.deciding.take_beats()
        self.feed(s.Dialled(effect.name, effect.session, not why, why))

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Nobody waits for a task of this kind: what ended it is said here."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, LeaseLost):
            log.error("dialling a node back, or planning, broke off", exc_info=error)

    async def _await_return(self, effect: s.Dial) -> str:
        """For a node that nobody can dial: its control stream is open, or is opened again; else why not."""
        waits = patience(RETURN_S, self.trips.of(effect.name))
        deadline = self._clock() + waits
        while (stream := self._streams.get(effect.name)) is None or stream.session != effect.session:
            if self._clock() > deadline:
                return f"it only dials out, and did not within {waits:.1f} s"
            await asyncio.sleep(TICK_S)
        return ""

    def _done(self, step: int) -> events.Event:
        evals, checkpoints, totals = self.store.evals(1), self.store.checkpoints(), self.store.totals()
        began = float(self.store.get("began") or time.time())
        return events.event(
            "done",
            steps=step,
            eval_loss=evals[-1].loss if evals else None,
            accuracy=evals[-1].accuracy if evals else None,
            seconds=time.time() - began,
            samples=totals["samples"],
            checkpoint=checkpoints[-1].path if checkpoints else None,
            views=len(self.store.views()),
            bytes_total=self._bytes,
            bytes_updates=totals["bytes_updates"],
            bytes_activations=totals["bytes_activations"],
            bytes_dense=totals["bytes_dense"],
            bytes_dense_updates=totals["bytes_dense_updates"],
        )

    @property
    def live_status(self) -> dict[str, dict[str, Any]]:
        """For ``status``: what only this process knows of each node."""
        now, silent = self._clock(), Live()
        observed = self.observed.nodes(now)
        return {
            name: {
                "attending": name in self._streams,
                "heard_s": round(now - node.heard, 1),
                "refused": self.verdicts.refusals.of((name, node.session)),
                "score": self.verdicts.judged.score(name),
                "doing": self.live.get(name, silent).doing,
                "trainer_age": round(self.live.get(name, silent).trainer_age, 1),
                **observed.get(name, {}),
            }
            for name, node in self.state.nodes.items()
        }

    def status(self, state: Path) -> dict[str, Any]:
        """The run's status, with what only this process knows."""
        return status_of(self.store, state, True, self.live_status, self.observed.links(self._clock()))

    @property
    def stands(self) -> tuple[int, int]:
        """(the step that is trained, that of the newest checkpoint); 0: none."""
        view = self.state.view
        return max(self._reached(), view.position.step if view else 0), self.state.newest.step

    @property
    def is_over(self) -> bool:
        """Whether the machine has ended."""
        return self.state.phase == DONE

    @property
    def trains(self) -> bool:
        """Whether a view trains now."""
        return self.state.phase == TRAINING
