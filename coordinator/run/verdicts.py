"""What members say of each other, carried from their reports to what follows for somebody: put out, planned apart, or
looked at. What it takes is decided in membership/ (refusals.py, judged.py).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Protocol

from ...job.schema import Facts, Job
from ...proto import control_pb2 as pb
from ..membership import signals as s
from ..membership.judged import LOOK_ROUNDS, MOST, Judged
from ..membership.members import State
from ..membership.refusals import Refusals, circle_of
from ..observe.useful_work import UsefulWork
from .commands import Command


class Judging(Protocol):
    """What is asked of the run."""

    job: Job
    facts: Facts
    work: UsefulWork

    @property
    def state(self) -> State: ...
    @property
    def is_over(self) -> bool: ...
    @property
    def trains(self) -> bool: ...
    def feed(self, event: s.Input) -> None: ...
    def command(self, command: Command) -> str: ...
    def warn(self, node: str, message: str) -> None: ...
    def tell(self, names: Collection[str], order: pb.Order) -> None: ...


class Verdicts:
    """``refusals``: what members refused of each other; ``judged``: what contributions do, as members compute it."""

    def __init__(self, run: Judging) -> None:
        self._run = run
        self.refusals, self.judged = Refusals(), Judged()

    def refused(self, by: str, name: str, points: int, tickets: Mapping[str, str]) -> None:
        """A member refused something of another: enough of that, and one is out. ``tickets``: by which who came."""
        run, state = self._run, self._run.state
        accused = state.nodes.get(name)
        if accused is None or by not in state.nodes:
            return
        view, lives = state.view, ((by, state.nodes[by].session), (name, accused.session))
        if view is None or not all(view.session_of(who) == session for who, session in lives):
            return
        about, itself = (circle_of(view.plan, who, run.facts.profile.tied, tickets) for who, _ in lives[::-1])
        verdict = self.refusals.count(*lives, points, about, itself)
        if verdict is None or run.is_over:
            return
        if verdict.apart:
            run.feed(s.Apart(*verdict.apart, verdict.why))
        else:
            self._put_out(verdict.out, verdict.why)

    def scored(self, by: str, report: pb.Scores) -> None:
        """A member or a spare has judged contributions: enough members of one mind, and one is out."""
        run, view = self._run, self._run.state.view
        if not run.job.updates.judge or not run.trains or view is None or report.view != view.number:
            return
        members = {member.name for member in view.members}
        said = {
            one.node: (one.own, one.held)
            for one in report.scores[: len(members)]
            if one.node in view.plan.nodes and one.node != by and abs(one.own) <= MOST and abs(one.held) <= MOST
        }
        if by not in members or not said:
            return
        now = max([view.position.step, *run.state.reported.values()]) // run.job.updates.interval
        findings = self.judged.count(by, view.plan.nodes, (report.view, report.round), now, said)
        if findings is None:
            return
        run.work.judged(by, said, time.time())
        for finding in findings:
            if finding.look:
                run.warn(finding.look, finding.why)
                look = pb.Judge(view=view.number, node=finding.look, rounds=LOOK_ROUNDS)
                run.tell(members, pb.Order(judge=look))
            elif not run.is_over:
                self._put_out(finding.out, finding.why)

    def _put_out(self, name: str, why: str) -> None:
        told = self._run.command(Command("evict", name, by="the coordinator", why=why))
        self._run.warn(name, told)
