"""A node's reports of a step: to the coordinator, to the person at the node, and warnings about bad numbers."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from typing import Any

from ....proto import control_pb2
from ...pipeline.activations import notes_of, without_state
from ...pipeline.chunk import Chunk
from ...pipeline.tally import Tally
from ..member.view_member import ViewMember
from .trying import Trying


class StepReport:
    """The reports of one view's steps: call ``begin`` for a step, set its ``tally``, then call ``finished``."""

    def __init__(self, view: ViewMember, chunks: Sequence[Chunk], trying: Trying) -> None:
        self._view, self._chunks, self._trying = view, chunks, trying
        self.tally = Tally()
        """The tally of this pipeline's share of the step."""
        self._started_at = 0.0
        self._told: set[tuple[int, str]] = set()

    def begin(self) -> None:
        """A step begins."""
        self._started_at = time.monotonic()
        self._view.context.clock.reset()

    def finished(self, step: int) -> None:
        """The step is finished on this node: tell the coordinator, and the person here."""
        self._view.context.report(control_pb2.Report(step=self.done(step)))
        self._tell(step)

    def pending(self) -> control_pb2.StepDone | None:
        """The report of a step that this node is ready for without knowing whether it is committed."""
        view = self._view
        return self.done(view.ready_step) if view.gradient and view.ready_step > view.step else None

    def done(self, step: int) -> control_pb2.StepDone:
        """This node's report of a step that it computed."""
        view, tally, clock = self._view, self.tally, self._view.context.clock
        ring = 0.0  # all-reduce in fp16: 2 (n-1)/n times 2 bytes a parameter leave every member
        for name, link in view.links.items():
            members = len(link.rounds.plan.members)
            ring += 2 * (members - 1) / members * 2 * view.state.sections[name].layout.numel
        done = control_pb2.StepDone(
            view=view.context.view,
            step=step,
            seconds=time.monotonic() - self._started_at,
            compute_seconds=clock.compute,
            codec_seconds=clock.codec,
            wire_seconds=clock.wire,
            waiting_seconds=clock.waiting,
            bytes_dense=int(ring) + 2 * tally.activation_elements,
            bytes_dense_updates=int(ring),
            notes=_written(self._notes()),
            peak_bytes=self._trying.peak,
        )
        if view.state.is_last:
            done.samples = tally.samples
            if math.isfinite(tally.loss_sum):  # else there is no loss to report
                done.loss_sum, done.tokens = tally.loss_sum, tally.tokens
        return done

    def _notes(self) -> dict[str, Any]:
        return notes_of([chunk.outgoing for chunk in self._chunks])

    def _tell(self, step: int) -> None:
        """Show the person at this node its pipeline's part of the step; only the last stage knows the loss."""
        view, tally, facts = self._view, self.tally, self._view.context.facts
        seconds = time.monotonic() - self._started_at
        samples = view.plan.microbatches[view.pipeline] * view.job.train.microbatch_size
        mean = facts.trained / facts.samples if facts.trained else facts.context
        tokens = tally.tokens or samples * mean  # the last stage counts; other stages estimate
        view.context.emit(
            {
                "event": "step",
                "time": time.time(),
                "step": step,
                "steps": view.last_step,
                "samples": samples,
                "seconds": seconds,
                "tokens_per_second": tokens / seconds,
                **self._notes(),
                **({"loss": tally.loss_sum / tally.tokens} if tally.tokens else {}),
            }
        )

    def warn_of_troubles(self, step: int) -> None:
        """Warn of bad numbers in this step, of each kind once per view. On a link where AQ-SGD does not pay, switch to
        the codec without state."""
        view, ends = self._view, self._view.resources.ends
        seen = (step - view.position.step) * view.job.train.batch
        for chunk in self._chunks:
            troubles = {"activations": chunk.outgoing.trouble, "disk": ends.trouble()}
            if chunk.model.is_last and not math.isfinite(self.tally.loss_sum):
                troubles["loss"] = f"the loss of step {step} is not finite"
            verdict = chunk.outgoing.verdict()  # about the samples since the last call
            if verdict and seen > 1.5 * view.context.facts.samples:  # before that every sample is new to the link
                instead = without_state(view.job.activations.forward)
                troubles["codec"] = f"{verdict}; activations go as {instead} from here on"
                ends.give_up(chunk.after, chunk.model.last + 1)
                chunk.outgoing.keep_no_state()
            for kind, trouble in troubles.items():
                if trouble and (chunk.stage, kind) not in self._told:
                    self._told.add((chunk.stage, kind))
                    view.context.warn(view.context.name, f"stage {chunk.stage}: {trouble}")


def _written(notes: dict[str, Any]) -> str:
    return json.dumps(notes, separators=(",", ":")) if notes else ""
