"""Checkpoints during the run: which files are accepted, and the consequences of a complete or a lost checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection

from ....proto import control_pb2 as pb
from ... import events
from ...checkpoints.acceptance import Expected, expected, lacking
from ...checkpoints.checkpoints import Complete
from ...checkpoints.late import Late, late_in_all
from ...checkpoints.manifest import read_manifest
from ...data.facts import in_thread
from ...membership import signals as s
from ...membership.faults.keepers import upload_s
from ...membership.members import all_finished
from ...membership.resuming.learnt import unsent_in
from ...membership.state import TRAINING
from ...store.rows import CheckpointRow
from ..attempt import attempt
from ..context import RunContext
from ..deciding import Deciding
from ..nodes.announcing import Announcing
from ..nodes.attendance import Attendance
from ..nodes.streams import Streams
from ..reports.step_reports import StepReports
from ..restart.restart_notes import RestartNotes
from .fallback import answer
from .mirror import Mirror


class Saving:
    """The run's checkpoints. ``mirror`` uploads them to a remote target, where the job names one."""

    def __init__(
        self,
        context: RunContext,
        deciding: Deciding,
        streams: Streams,
        steps: StepReports,
        announcing: Announcing,
        notes: RestartNotes,
    ) -> None:
        self._context, self._deciding, self._streams = context, deciding, streams
        self._steps, self._announcing, self._notes = steps, announcing, notes
        self.mirror: Mirror | None = None
        self._late = Late()

    def expects(self, sender: tuple[str, str], shard: pb.Shard) -> Expected:
        """The requirements on a checkpoint's file. NotAccepted: why its sender (name, session) may not send it."""
        job, facts = self._context.job, self._context.facts
        last = max(self._steps.last_step, facts.steps)
        views, reached = self._announcing.recent, self._steps.reached
        return expected(views, job, facts, reached, last, sender, step=shard.step, file=shard.file, view=shard.view)

    def complete(self, complete: Complete) -> None:
        """The last file of a checkpoint has arrived."""
        store, position = self._context.store, complete.position
        redo = json.dumps(list(position.redo))
        store.checkpoints.put(CheckpointRow(complete.step, str(complete.path), position.cursor, redo, time.time()))
        attempt("forgetting old checkpoints", self.forget_old)
        if self.mirror is not None:
            self.mirror.wake()
        else:
            self._context.emit(events.event("checkpoint", step=complete.step, path=str(complete.path)))
        self._notes.put_kept()
        self._deciding.feed(s.CheckpointComplete(position, unsent_in(read_manifest(complete.path))))
        self.tell_complete()

    def lacking(self) -> tuple[str, ...]:
        """After all have finished: the nodes that have not sent their file of the last checkpoint."""
        state = self._deciding.state
        if state.phase != TRAINING or state.view is None or not all_finished(state):
            return ()
        step = max(answer.step for answer in state.finished.values())
        return lacking(state.view, step, self._context.checkpoints.has_whole)

    def late(self, slowest_bps: Callable[[str], float]) -> str:
        """The warning to give now about checkpoints that do not become complete while the run trains; empty for
        none."""
        state, context = self._deciding.state, self._context
        every, view = context.job.checkpoint.every, state.view
        if not every or state.phase != TRAINING or view is None or all_finished(state):
            return ""
        due = self._steps.reached - self._steps.reached % every

        def late() -> tuple[str, ...]:
            steps = {due, *(step for step in context.checkpoints.open_steps if step > state.newest.step)}
            return late_in_all(steps, lambda step: lacking(view, step, context.checkpoints.has_whole))

        def longest(names: Collection[str]) -> float:
            return upload_s(state.rules, names, slowest_bps)

        return self._late.at(state.newest.step, due, late, longest, context.clock())

    def not_stored(self, step: int, why: str) -> None:
        """The disk could not store a file of a checkpoint."""
        self._deciding.feed(s.NotStored(step, why))

    def tell_complete(self, to: Attendance | None = None) -> None:
        """Tell the nodes which complete checkpoint is the newest, because they have to keep their residuals beside it.
        ``to``: only this stream, of a node that has just come."""
        newest = self._deciding.state.unsent
        if newest is not None:
            self._streams.say(pb.Order(complete=pb.Kept(step=newest.step, view=newest.view)), to)

    def forget_old(self) -> None:
        """Delete the database's rows of checkpoints that are neither in the folder nor at the target any more."""
        there = self.mirror.there if self.mirror else set()
        for old in self._context.store.checkpoints.all():
            if self._context.checkpoints.path(old.step) is None and old.step not in there:
                self._context.store.checkpoints.forget(old.step)

    async def look(self, effect: s.LookAt | s.PutAside) -> s.Input:
        """Read a checkpoint again, or set it aside. FarflungError: that was not possible."""
        store, target = self._context.store, self.mirror.target if self.mirror is not None else None
        known = {row.step for row in store.checkpoints.all()} if store.server is not None else None
        return await in_thread(answer, effect, self._context.checkpoints, target, known)

    def fall_back(self, effect: s.LookAt | s.PutAside, found: s.Input) -> None:
        """Tell the machine and the nodes which checkpoint remains."""
        store, mirror = self._context.store, self.mirror
        if isinstance(found, s.CheckpointLost):
            if mirror is not None and isinstance(effect, s.PutAside):
                mirror.there = mirror.there - {effect.step}
            for row in store.checkpoints.all():
                if row.step > found.position.step:
                    store.checkpoints.forget(row.step)
        self._deciding.feed(found)
        self.tell_complete()
