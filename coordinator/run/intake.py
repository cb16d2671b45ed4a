"""Dispatches the reports of nodes: a table from each kind of report to its handler.

Whether a report can be true is checked before, in one place (border.py). Most reports become an event, whose
consequences the membership machine decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...proto import control_pb2 as pb
from ...proto.words.border import printable
from ..membership import signals as s
from ..membership.orders import fingerprints_of, flushed_of
from ..planning.measured import Measured
from .context import RunContext
from .deciding import Deciding
from .judging.early_stop import EarlyStop
from .judging.verdicts import Verdicts
from .nodes.announcing import Announcing
from .nodes.attendance import Attendance, Live, idle_of, is_ready
from .nodes.round_trips import RoundTrips
from .nodes.sessions import Sessions
from .people.requests import Requests
from .reports.border import ANYBODY, FASTEST_BPS, LONGEST_LATENCY_S, About, refused
from .reports.step_reports import StepReports
from .warnings import Warn

_MOST_WORDS = 1000
"""Most characters of a node's warning."""


@dataclass(kw_only=True)
class Intake:
    """Handles reports. ``live``: node -> what its last heartbeat said."""

    context: RunContext
    deciding: Deciding
    sessions: Sessions
    measured: Measured
    steps: StepReports
    early: EarlyStop
    announcing: Announcing
    requests: Requests
    verdicts: Verdicts
    trips: RoundTrips
    warn: Warn
    live: dict[str, Live] = field(default_factory=dict)
    _ends: int = 0
    """The largest last step that this run ever had (`set` may lower it): nodes may report steps up to it."""

    def take(self, stream: Attendance, report: pb.Report) -> None:
        """Handle a node's report. One that cannot be true changes nothing and becomes a warning."""
        kind = report.WhichOneof("kind")
        # Whether a heartbeat can be true does not depend on the run, and a thousand arrive each second.
        if why := refused(report, ANYBODY if kind == "heartbeat" else self._about(stream.name)):
            self.warn(stream.name, why)
        elif kind in TAKERS:
            TAKERS[kind](self, stream, getattr(report, kind))

    def _about(self, name: str) -> About:
        """The run's data with which the checks compare a node's report."""
        job, facts, view = self.context.job, self.context.facts, self.deciding.state.view
        self._ends = max(self._ends, self.steps.last_step, facts.steps)
        language = job.model.build is None and job.model.parameters is None
        return About(
            name,
            self.measured.devices.keys(),
            self._ends,
            len(facts.profile.layers),
            facts.vocabulary,
            view,
            age=None if view is None else self.announcing.age(view),
            batch=job.train.batch,
            tokens=facts.context if language else 0,
        )

    # ---- being there ---------------------------------------------------------------------------

    def _heartbeat(self, stream: Attendance, beat: pb.Heartbeat) -> None:
        now = stream.heard = self.context.clock()
        self.live[stream.name] = Live(printable(beat.doing), beat.trainer_age)
        ready = is_ready(beat, now - stream.since)
        self.deciding.heard(stream.name, stream.session, ready, beat.moved, idle_of(beat))

    def _links(self, stream: Attendance, links: pb.Links) -> None:
        """Handle a node's measured links, without those that it can't have measured."""
        found = {}
        for link in links.links:
            source, latency, rate = getattr(link, "from") or stream.name, link.latency_s, link.bandwidth_bps
            known = stream.name in (source, link.to) and {source, link.to} <= self.measured.devices.keys()
            if known and 0 <= latency <= LONGEST_LATENCY_S and 0 <= rate <= FASTEST_BPS:
                found[source, link.to] = (latency, rate)
        self.measured.found(found, self.context.clock())
        self.context.store.links.put_all(found, time.time())
        self.deciding.feed(s.Measured(stream.name, stream.session))

    def _clock(self, stream: Attendance, answer: pb.ClockAnswer) -> None:
        self.trips.answered(stream.name, answer)
        if self.requests.profiling is not None:
            self.requests.profiling.answered(stream.name, answer)

    def _leaving(self, stream: Attendance, leaving: pb.Leaving) -> None:
        why = printable(leaving.why) or "leaving"
        self.deciding.feed(s.Leaving(stream.name, stream.session, why, leaving.stays, leaving.asked))

    def _back(self, stream: Attendance, _: pb.Back) -> None:
        self.deciding.feed(s.Back(stream.name, stream.session))

    def _goodbye(self, stream: Attendance, goodbye: pb.Goodbye) -> None:
        self.deciding.feed(s.Left(stream.name, stream.session, printable(goodbye.why) or "goodbye"))

    # ---- view changes --------------------------------------------------------------------------

    def _flushed(self, stream: Attendance, flushed: pb.Flushed) -> None:
        if flushed.HasField("pending"):
            self.steps.pending(stream.name, flushed.pending)
        self.deciding.feed(flushed_of(stream.name, stream.session, flushed))

    def _prepared(self, stream: Attendance, prepared: pb.Prepared) -> None:
        self.announcing.views.prepared(stream.session, prepared.view)
        prints = fingerprints_of(prepared.fingerprints)
        bases = {one.layer: one.content for one in prepared.bases}
        self.deciding.feed(s.Prepared(stream.name, stream.session, prepared.view, prints, bases))

    def _unreadable(self, stream: Attendance, said: pb.Unreadable) -> None:
        row = self.sessions.get(stream.name)
        voice = row.ticket if row is not None else ""
        why = printable(said.why)
        self.deciding.feed(s.Unreadable(stream.name, stream.session, said.view, said.file, why, voice))

    def _caught_up(self, stream: Attendance, caught_up: pb.CaughtUp) -> None:
        failed = printable(caught_up.failed)
        self.deciding.feed(s.CaughtUp(stream.name, stream.session, caught_up.view, failed))

    # ---- training ------------------------------------------------------------------------------

    def _step(self, stream: Attendance, step: pb.StepDone) -> None:
        self.steps.step(stream.name, stream.session, step)

    def _trial_failed(self, stream: Attendance, failed: pb.TrialFailed) -> None:
        self.steps.trial_failed(stream.name, failed)

    def _eval(self, stream: Attendance, evaluation: pb.EvalDone) -> None:
        if self.steps.evaluation(stream.name, evaluation):
            self.early.evaluated()

    def _kept(self, stream: Attendance, kept: pb.Kept) -> None:
        self.deciding.feed(s.Kept(stream.name, stream.session, kept.step, kept.view, kept.norm, kept.moved))

    def _written(self, stream: Attendance, written: pb.Written) -> None:
        if self.requests.text is not None:
            self.requests.text.wrote(stream.name, written)

    def _finished(self, stream: Attendance, done: pb.Finished) -> None:
        prints = fingerprints_of(done.fingerprints)
        self.deciding.feed(s.Finished(stream.name, stream.session, done.view, done.step, prints))

    # ---- about other nodes ---------------------------------------------------------------------

    def _waits(self, stream: Attendance, waits: pb.Waits) -> None:
        peers = tuple(waits.peers)
        self.deciding.feed(s.Waits(stream.name, stream.session, waits.view, peers, waits.moves))

    def _evidence(self, stream: Attendance, lost: pb.Evidence) -> None:
        why = printable(lost.why)
        self.deciding.feed(s.Accused(stream.name, stream.session, lost.peer, why, lost.diverged, lost.mended))

    def _warning(self, stream: Attendance, warning: Any) -> None:  # grpc-stubs and the builtin share the name Warning
        about = warning.node if warning.node in self.measured.devices else stream.name
        self.warn(about, printable(warning.message, _MOST_WORDS))
        if warning.refused and warning.node != stream.name:
            self.verdicts.refused(stream.name, warning.node, warning.refused, self.sessions.tickets)

    def _scores(self, stream: Attendance, scores: pb.Scores) -> None:
        self.verdicts.scored(stream.name, scores)


TAKERS: Mapping[str, Callable[[Intake, Attendance, Any], None]] = {
    "heartbeat": Intake._heartbeat,
    "links": Intake._links,
    "clock": Intake._clock,
    "leaving": Intake._leaving,
    "back": Intake._back,
    "goodbye": Intake._goodbye,
    "flushed": Intake._flushed,
    "prepared": Intake._prepared,
    "unreadable": Intake._unreadable,
    "caught_up": Intake._caught_up,
    "step": Intake._step,
    "trial_failed": Intake._trial_failed,
    "eval": Intake._eval,
    "kept": Intake._kept,
    "written": Intake._written,
    "finished": Intake._finished,
    "waits": Intake._waits,
    "evidence": Intake._evidence,
    "warning": Intake._warning,
    "scores": Intake._scores,
}
"""Kind of a report -> what takes it in. ``hello`` opens a stream and ``renew`` asks for a certificate: both are the
service's (serve/)."""
