"""Evaluations and checkpoints: when they are due, and this node's part in them."""

from __future__ import annotations

from collections.abc import Sequence

from ....job.data.facts import Facts
from ....proto import control_pb2
from ...pipeline.runner import Runner
from ...pipeline.tally import Tally
from ...state.files.checkpoint import shard_of, tensors_of
from ...state.files.tensor_writer import written
from ..member.residual import rest_of
from ..member.view_member import ViewMember
from ..modes.mode import Mode


class Milestones:
    """The milestones of one view. They are made at the end of a step, when g has the same round on all stages."""

    def __init__(self, view: ViewMember, mode: Mode, runner: Runner, size: int) -> None:
        """``size``: samples of a microbatch of this pipeline."""
        self._view, self._mode, self._runner, self._size = view, mode, runner, size
        self.evaluate = self.save = False
        """Whether an evaluation, or a checkpoint, is due that the view before did not make: see `ViewStart`."""

    def is_due(self, step: int) -> bool:
        """Whether anything after this step needs the reference."""
        job = self._view.job
        due = self._falls_on(step, job.train.eval_every) or self._falls_on(step, job.checkpoint.every)
        return due or self.save or self.evaluate

    def begin(self, step: int) -> None:
        """The view begins after ``step``: make the milestones that the view before did not make."""
        view = self._view
        if self.evaluate and view.job.updates.agreed and step < view.last_step:
            self._evaluate(step)
        self._save_if_settled(step)

    def after(self, step: int) -> None:
        """Make the milestones that are due after a step."""
        if self.evaluate or self._falls_on(step, self._view.job.train.eval_every):
            self._evaluate(step)
        self.save = self.save or self._falls_on(step, self._view.job.checkpoint.every)
        self._save_if_settled(step)

    def _falls_on(self, step: int, every: int) -> bool:
        return step == self._view.last_step or bool(every and step % every == 0)

    def _save_if_settled(self, step: int) -> None:
        """Make a checkpoint if one is due and g has all that earlier views left in x."""
        if self.save and self._mode.is_settled:
            self.save = False
            with self._view.context.clock.span("checkpoint"):
                self.checkpoint(step)

    def _evaluate(self, step: int) -> None:
        self.evaluate = False
        with self._view.context.clock.span("evaluation"):
            self.evaluation(step)

    def evaluation(self, step: int) -> None:
        """This pipeline's share of the samples of an evaluation, computed with the reference."""
        view = self._view
        chunks = evaluated(view.context.facts, view.job.train.microbatch_size)
        own = chunks[view.pipeline :: len(view.plan.pipelines)]
        mine = [(number, chunk[i : i + self._size]) for number, chunk in own for i in range(0, len(chunk), self._size)]
        if not chunks:
            return
        view.context.wire.doing = f"evaluates after step {step}"
        view.state.use_reference()
        try:
            if view.resources.island is not None:
                view.resources.island.share(view.state.sections.values(), reference=True)
            tallies = self._runner.evaluate(step, [samples for _, samples in mine])
        finally:
            view.state.use_local()
        if view.state.is_last:
            numbers = [number for number, _ in mine]
            view.context.report(control_pb2.Report(eval=_done(view, step, numbers, tallies)))

    def checkpoint(self, step: int) -> None:
        """The keeper of each stage sends the reference; training goes on meanwhile."""
        view, context, resources = self._view, self._view.context, self._view.resources
        # After a restart, samples are trained again whose effect is not in g (a round in flight, or steps since a
        # round).
        missing = self._mode.missing(step)
        keeps = [stage for stage in view.state.stages if view.plan.keeper(stage) == context.name]
        # A keeper of a stage that keeps no rests asks for its norms alone, which take no copy.
        room = resources.memory_left() / 2 if resources.rests is not None else 0.0
        rest = rest_of(view, step, room) if resources.rests is not None or keeps else None
        if resources.rests is not None and rest is not None:
            resources.rests.keep(rest, self._is_writing)
            kept = control_pb2.Kept(step=step, view=context.view, norm=rest.norm, moved=rest.moved)
            context.report(control_pb2.Report(kept=kept))
        position = view.position.after(step, view.job.train.batch, sorted(one for own in missing for one in own))
        for stage in keeps:
            needed = written(tensors_of(view.state, stage)).size
            if needed > (free := resources.memory_left()):
                why = f"a copy of stage {stage} to send takes {needed / 1e9:.3g} GB, and {free / 1e9:.3g} GB are free"
                context.warn(context.name, f"the checkpoint of step {step} is left out: {why}")
                continue
            file, payload, meta = shard_of(view.state, stage, context.view, step, position, context.wire.room)
            if rest is not None and not view.gradient:  # one member's figures, for users of g alone
                share = min(exchange.share for exchange in view.exchanges.values())
                meta["unsent"], meta["moved"] = rest.norm / share, rest.moved
            meta["pipelines"] = [list(pipeline) for pipeline in view.plan.pipelines]
            meta["unfinished"] = {str(pipeline): own for pipeline, own in enumerate(missing) if own}
            context.wire.store(step, file, payload, len(view.plan.stages), meta)

    def _is_writing(self) -> None:
        """Say that this node lives while it writes a rest."""
        self._view.context.wire.doing = "keeps what it learnt beside a checkpoint"


def evaluated(facts: Facts, size: int) -> list[tuple[int, list[int]]]:
    """The chunks of an evaluation: (0 for validation samples, or the number of the evaluation set from 1 on; at most
    ``size`` ids)."""
    chunks, begin = [], facts.samples
    for number, count in enumerate([facts.validation_samples, *(samples for _, samples in facts.sets)]):
        ids = range(begin, begin + count)
        chunks += [(number, list(ids[i : i + size])) for i in range(0, count, size)]
        begin += count
    return chunks


def _done(view: ViewMember, step: int, numbers: Sequence[int], tallies: Sequence[Tally]) -> control_pb2.EvalDone:
    """The report of an evaluation: validation samples, and each evaluation set of which this pipeline had samples."""
    report = control_pb2.EvalDone(view=view.context.view, step=step)
    sets: dict[int, control_pb2.SetDone] = {}
    for number, tally in zip(numbers, tallies, strict=True):
        if number:
            into = sets.setdefault(number, control_pb2.SetDone(number=number))
            into.loss_sum, into.tokens = into.loss_sum + tally.loss_sum, into.tokens + tally.tokens
            into.correct += tally.correct
        else:
            report.loss_sum, report.tokens = report.loss_sum + tally.loss_sum, report.tokens + tally.tokens
            report.correct, report.predictions = report.correct + tally.correct, report.predictions + tally.tokens
    report.sets.extend(sets.values())
    return report
