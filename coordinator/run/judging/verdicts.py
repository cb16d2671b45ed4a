"""Applies members' reports about each other: a node is put out, planned apart, or looked at.

The conditions are decided in membership/faults (refusals.py, judged.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from ....job.chosen import every_of
from ....proto import control_pb2 as pb
from ...membership import signals as s
from ...membership.faults.judged import LOOK_ROUNDS, MOST, Judged
from ...membership.faults.refusals import Refusals, circle_of
from ...membership.state import DONE, TRAINING
from ...observe.useful_work import UsefulWork
from ..context import RunContext
from ..deciding import Deciding
from ..nodes.streams import Streams
from ..people.commands import Command
from ..warnings import Warn


class Verdicts:
    """``refusals``: what members refused of each other; ``judged``: what contributions do, as members compute it."""

    def __init__(
        self,
        context: RunContext,
        deciding: Deciding,
        streams: Streams,
        work: UsefulWork,
        warn: Warn,
        command: Callable[[Command], str],
    ) -> None:
        self._context, self._deciding, self._streams = context, deciding, streams
        self._work, self._warn, self._command = work, warn, command
        self.refusals, self.judged = Refusals(), Judged()

    def refused(self, by: str, name: str, points: int, tickets: Mapping[str, str]) -> None:
        """A member refused another's message: enough refusals evict a node. ``tickets``: by which each node joined."""
        state = self._deciding.state
        accused = state.nodes.get(name)
        if accused is None or by not in state.nodes:
            return
        view, lives = state.view, ((by, state.nodes[by].session), (name, accused.session))
        if view is None or not all(view.session_of(who) == session for who, session in lives):
            return
        tied = self._context.facts.profile.tied
        about, itself = (circle_of(view.plan, who, tied, tickets) for who, _ in lives[::-1])
        verdict = self.refusals.count(*lives, points, about, itself)
        if verdict is None or state.phase == DONE:
            return
        if verdict.apart:
            self._deciding.feed(s.Apart(*verdict.apart, verdict.why))
        else:
            self._put_out(verdict.out, verdict.why)

    def scored(self, by: str, report: pb.Scores) -> None:
        """A member or a spare has judged contributions: enough members that agree evict a node."""
        state, updates = self._deciding.state, self._context.job.updates
        view = state.view
        if not updates.judge or state.phase != TRAINING or view is None or report.view != view.number:
            return
        members = {member.name for member in view.members}
        said = {
            one.node: (one.own, one.held)
            for one in report.scores[: len(members)]
            if one.node in view.plan.nodes and one.node != by and abs(one.own) <= MOST and abs(one.held) <= MOST
        }
        if by not in members or not said:
            return
        interval = every_of(self._context.job, view.plan.chosen) // updates.fragments
        now = max([view.position.step, *state.reported.values()]) // interval
        findings = self.judged.count(by, view.plan.nodes, (report.view, report.round), now, said)
        if findings is None:
            return
        self._work.judged(by, said, time.time())
        for finding in findings:
            if finding.look:
                self._warn(finding.look, finding.why)
                look = pb.Judge(view=view.number, node=finding.look, rounds=LOOK_ROUNDS)
                for name in members:
                    self._streams.tell(name, pb.Order(judge=look))
            elif self._deciding.state.phase != DONE:
                self._put_out(finding.out, finding.why)

    def _put_out(self, name: str, why: str) -> None:
        self._warn(name, self._command(Command("evict", name, by="the coordinator", why=why)))
