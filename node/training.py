"""Training in one view: steps, rounds, evaluations and checkpoints, until the last step or the end of the view."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ..proto import control_pb2, data_pb2
from ..proto.sampling import Position, assign, sample_ids
from ..scheduler import Plan
from .activations import Incoming, Outgoing
from .checkpoints import shard_of
from .commit import Commit
from .exchange import Exchange
from .optimizers import clip_factor, learning_rate, squared_norm
from .pipeline import Place, StageRunner, Tally
from .round_link import RoundLink
from .rounds import Result, Rounds
from .sections import Section
from .stage_state import StageState, round_plan

if TYPE_CHECKING:
    from .trainer import Trainer

BULK, ROUND, URGENT = 2, 1, 0
"""Priorities on a link: state transfers after rounds after activations."""


class ViewEnds(Exception):
    """The coordinator has announced another view: flush."""

    def __init__(self, order: control_pb2.Flush) -> None:
        super().__init__(order.why)
        self.order = order


class Training:
    """A node's training in one view. Built when the view is prepared, ``run`` once it starts."""

    def __init__(self, trainer: Trainer, state: StageState, plan: Plan, position: Position) -> None:
        job = trainer.job
        self.trainer, self.state, self.plan, self.position = trainer, state, plan, position
        self.job = job
        self.gradient = job.updates.mode == "gradient"
        self.pipeline = plan.pipeline_of(trainer.name)
        self.step = position.step
        self.ready_step = position.step
        self.base_round = max((section.round for section in state.sections.values()), default=0)
        self.started = False
        if job.run.steps is not None:
            self.last_step = job.run.steps
        else:
            self.last_step = position.last_step((job.run.epochs or 1) * trainer.facts.samples, job.train.batch)
        members = plan.nodes if self.gradient else plan.pipelines[self.pipeline]
        self.commit = Commit(members, trainer.name, position.step)
        self.links: dict[str, RoundLink] = {}
        for name, section in state.sections.items():
            rounds = round_plan(plan, name, section.layout.numel, job.updates.block, job.updates.pattern, self.gradient)
            if len(rounds.members) > 1:
                self.links[name] = RoundLink(
                    Exchange(
                        section,
                        rounds,
                        trainer.name,
                        job.updates.codec,
                        job.updates.dense_rounds,
                        self.gradient,
                        job.run.seed,
                    ),
                    Rounds(rounds, trainer.name, section.round, section.chain),
                    self._send_round,
                    trainer.warn,
                )
        self._in_flight = False
        self._apply_at = 0
        self._tally = Tally()
        self._started_at = 0.0
        self._updates: dict[str, tuple[Tensor, tuple[Result, ...]]] = {}
        before, after = plan.neighbours(trainer.name)
        first, last = plan.stages[state.index]
        self.outgoing = Outgoing(job.activations, job.run.seed, trainer.ends.sender(after, last + 1))
        self.incoming = Incoming(trainer.ends.receiver(before, first), self._nack)
        self.runner = StageRunner(
            state.model,
            Place(state.index, len(plan.stages), before, after, plan.schedule),
            trainer.data,
            trainer.take,
            self._send_activation,
            self.outgoing,
            self.incoming,
            trainer.device,
            job.train.precision,
        )

    @property
    def committed_norm(self) -> float:
        return self.commit.norm if self.commit.step == self.step else 0.0

    # ---- the loop --------------------------------------------------------------------------

    def run(self) -> None:
        """Train from the view's first step to the run's last. Raises ViewEnds when the view ends before."""
        self.started = True
        if self.step >= self.last_step:
            self._milestones(self.step)  # the view before ended between the last step and what was due there
        while self.step < self.last_step:
            step = self.step + 1
            self.trainer.wire.doing = f"trains step {step}"
            self._started_at = time.monotonic()
            self._tally = self._compute(step)
            if self.gradient:
                self._finish_gradient(step)
            else:
                self._finish_delta(step)
            self.trainer.pump()
            self._milestones(step)
        if self._in_flight:
            self._apply_round()  # the last round of the run has no next step to hide behind
            self._milestones(self.step, again=True)

    def _compute(self, step: int) -> Tally:
        """Forward and backward of this pipeline's share of the step."""
        train = self.job.train
        positions = self.position.positions(step, train.batch)
        samples = sample_ids(positions, self.job.run.seed, self.trainer.facts.samples)
        share = [samples[i] for i in assign(samples, self.plan.microbatches, train.microbatch)[self.pipeline]]
        microbatches = [share[i : i + train.microbatch] for i in range(0, len(share), train.microbatch)]
        scale = 1.0
        if self.state.model.is_last:
            # The mean over target tokens: of the whole step where pipelines' gradients are summed, else of our own.
            targets = self.state.model.target_count(self.trainer.data.batch(share[:1])[1])
            scale /= targets * (train.batch if self.gradient else len(share))
        self.state.zero_gradients()
        return self.runner.step(step, microbatches, scale)

    # ---- gradient mode ---------------------------------------------------------------------

    def _finish_gradient(self, step: int) -> None:
        """Average the gradient, agree that everybody has it, take the same optimiser step everywhere."""
        for link in self.links.values():
            link.begin()
        self._wait(lambda: all(link.complete for link in self.links.values()))
        square = 0.0
        for name, section in self.state.sections.items():
            if name in self.links:
                update, results = self.links[name].update()
                section.grad.copy_(update)
                self._updates[name] = (update, results)
                if self.links[name].rounds.plan.members[0] == self.trainer.name:
                    square += squared_norm(section.grad)
            else:
                square += squared_norm(section.grad)
        self._agree(step, square)
        self._apply_gradient(step, self.commit.norm)

    def _apply_gradient(self, step: int, norm: float) -> None:
        """The step is committed: nothing from here on can fail or wait."""
        train = self.job.train
        finite = math.isfinite(norm)
        if finite:
            rate = learning_rate(train, step, self.trainer.facts.steps)
            factor = clip_factor(norm, train.clip)
            for name, section in self.state.sections.items():
                if factor != 1.0:
                    section.grad.mul_(factor)
                self._optimise(name, section, step, rate)
        elif self.trainer.name == self.commit.committer:
            self.trainer.warn("", f"step {step} had a gradient that is not finite: no node applied it")
        for name, section in self.state.sections.items():
            if name in self.links:
                if finite:
                    self.links[name].exchange.commit_gradient()
                self.links[name].finish(self._updates[name][1], self.job.updates.block)
            else:
                section.round += 1
        self._updates = {}
        self._stepped(step)

    def finish_committed(self) -> None:
        """The view ends, but the commit point of the step in work has passed: it is finished all the same."""
        step = self.step + 1
        if self.ready_step == step == self.commit.step:
            if self.gradient:
                self._apply_gradient(step, self.commit.norm)
            else:
                self._local_step(step, self.commit.norm)

    def commit_late(self, norm: float) -> None:
        """Another member had seen the commit of the step that this node was ready for when the view ended."""
        self.commit.committed(self.step + 1, norm)
        self._apply_gradient(self.step + 1, norm)

    def pending(self) -> control_pb2.StepDone | None:
        """The report of a step that this node is ready for without knowing whether it is committed."""
        return self._done(self.ready_step) if self.gradient and self.ready_step > self.step else None

    # ---- delta mode ------------------------------------------------------------------------

    def _finish_delta(self, step: int) -> None:
        """A local optimiser step; a round begins every ``every`` steps and is applied ``overlap`` steps later."""
        updates = self.job.updates
        square = sum(squared_norm(section.grad) for section in self.state.sections.values())
        self._agree(step, square)
        if self._in_flight and step >= self._apply_at:
            self._apply_round()
        self._local_step(step, self.commit.norm)
        if step % updates.every == 0 or step == self.last_step:
            if self._in_flight:
                self._apply_round()
            for link in self.links.values():
                link.begin()
            self._in_flight, self._apply_at = True, step + updates.overlap
            if updates.overlap == 0:
                self._apply_round()

    def _local_step(self, step: int, norm: float) -> None:
        """The pipeline's step was committed: every node of it moves its x."""
        train = self.job.train
        if math.isfinite(norm):
            rate = learning_rate(train, step, self.trainer.facts.steps)
            factor = clip_factor(norm, train.clip)
            self.state.optimizer_steps += 1
            for name, section in self.state.sections.items():
                if factor != 1.0:
                    section.grad.mul_(factor)
                self._optimise(name, section, self.state.optimizer_steps, rate)
        elif self.trainer.name == self.commit.committer:
            why = f"step {step} of pipeline {self.pipeline} had a gradient that is not finite: dropped"
            self.trainer.warn(self.trainer.name, why)
        self._stepped(step)

    def _apply_round(self) -> None:
        """Wait for the round in flight and move g and x by it."""
        self._wait(lambda: all(link.complete for link in self.links.values()))
        for name, section in self.state.sections.items():
            if name in self.links:
                self._apply_link(self.links[name])
            else:
                section.g.copy_(section.x)
                section.round += 1
        self._in_flight = False

    def _apply_link(self, link: RoundLink) -> None:
        update, results = link.update()
        link.exchange.apply_delta(update, results)
        link.finish(results, self.job.updates.block)

    # ---- common ----------------------------------------------------------------------------

    def _optimise(self, name: str, section: Section, count: int, rate: float) -> None:
        self.trainer.optimizer.step(section.x, section.grad, section.moments, count, rate, self.state.decay[name])

    def _stepped(self, step: int) -> None:
        self.step = self.trainer.step = step
        self.trainer.wire.report(control_pb2.Report(step=self._done(step)))
        tally = self._tally
        loss = {"loss": tally.loss_sum / tally.tokens} if tally.tokens else {}
        seconds = time.monotonic() - self._started_at
        self.trainer.emit({"event": "step", "time": time.time(), "step": step, "seconds": seconds, **loss})

    def _agree(self, step: int, square: float) -> None:
        """The commit point: returns when every member was ready for the step."""
        self.ready_step = step
        commit = self.commit
        if commit.committer == self.trainer.name:
            if commit.ready(self.trainer.name, step, square):
                self._tell_commit()
        else:
            header = data_pb2.Header(kind=data_pb2.READY, step=step, value=square)
            self.trainer.send(commit.committer, header, b"", URGENT)
        self._wait(lambda: commit.step >= step)

    def _tell_commit(self) -> None:
        for name in self.commit.others:
            header = data_pb2.Header(kind=data_pb2.COMMIT, step=self.commit.step, value=self.commit.norm)
            self.trainer.send(name, header, b"", URGENT)

    def _wait(self, done: Any) -> None:
        while not done():
            self.trainer.pump(0.05)

    def _milestones(self, step: int, again: bool = False) -> None:
        """Evaluation and checkpoint where they are due: always at the boundary of a step, with g of one round.

        ``again``: the last round was applied after the last step, so what was due there is due with it.
        """
        train, last = self.job.train, step == self.last_step
        if last and self._in_flight and not again:
            return
        if last or (train.eval_every and step % train.eval_every == 0):
            self._evaluate(step)
        if last or (self.job.checkpoint.every and step % self.job.checkpoint.every == 0):
            self._checkpoint(step)

    def _evaluate(self, step: int) -> None:
        train = self.job.train
        facts = self.trainer.facts
        ids = list(range(facts.samples, facts.samples + facts.validation_samples))
        chunks = [ids[i : i + train.microbatch] for i in range(0, len(ids), train.microbatch)]
        if not chunks:
            return
        self.trainer.wire.doing = f"evaluates after step {step}"
        self.state.use_reference()
        try:
            tally = self.runner.evaluate(step, chunks[self.pipeline :: len(self.plan.pipelines)])
        finally:
            self.state.use_local()
        if self.state.model.is_last:
            report = control_pb2.EvalDone(
                view=self.trainer.view, step=step, loss_sum=tally.loss_sum, tokens=tally.tokens
            )
            report.correct, report.predictions = tally.correct, tally.tokens
            self.trainer.wire.report(control_pb2.Report(eval=report))

    def _checkpoint(self, step: int) -> None:
        """One member of each group sends the reference, while training goes on; groups take turns by stage."""
        group = self.plan.group(self.state.index)
        if group[self.state.index % len(group)] != self.trainer.name:
            return
        position = self.position.after(step, self.job.train.batch)
        file, payload, meta = shard_of(self.state, step, position)
        self.trainer.wire.store(step, file, payload, len(self.plan.stages), meta)

    # ---- messages --------------------------------------------------------------------------

    def _send_round(self, to: str, header: data_pb2.Header, payload: Sequence[bytes] | memoryview) -> None:
        self.trainer.send(to, header, payload, ROUND)

    def _send_activation(self, to: str, header: data_pb2.Header, payload: Sequence[bytes]) -> None:
        self.trainer.send(to, header, payload, URGENT)

    def _nack(self, step: int, microbatch: int, samples: Iterable[int]) -> None:
        before, _ = self.plan.neighbours(self.trainer.name)
        header = data_pb2.Header(kind=data_pb2.NACK, step=step, microbatch=microbatch, samples=list(samples))
        self.trainer.send(before or "", header, b"", URGENT)

    def handle(self, sender: str, header: data_pb2.Header, payload: npt.NDArray[np.uint8]) -> None:
        """A message of this view that is neither mail nor of a round."""
        if header.kind == data_pb2.READY:
            if self.commit.ready(sender, header.step, header.value):
                self._tell_commit()
        elif header.kind == data_pb2.COMMIT:
            if sender == self.commit.committer:
                self.commit.committed(header.step, header.value)
        elif header.kind == data_pb2.NACK:
            again = self.outgoing.again(header.step, header.microbatch, list(header.samples))
            answer = data_pb2.Header(
                kind=data_pb2.ACTIVATION, step=header.step, microbatch=header.microbatch, sizes=again.sizes
            )
            self._send_activation(sender, answer, again.payload)

    def tick(self) -> None:
        for link in self.links.values():
            link.tick()

    # ---- after the view --------------------------------------------------------------------

    def behind(self, targets: dict[str, int]) -> list[str]:
        """Sections of which some member has applied a round that this node has not."""
        sections = self.state.sections
        for name in sections:
            link = self.links.get(name)
            if link is None and sections[name].round < targets.get(name, 0):
                # Alone in the section: there is nobody to be behind of.
                sections[name].round = targets[name]
        return [name for name, section in sections.items() if section.round < targets.get(name, 0)]

    def chase(self, behind: Iterable[str]) -> None:
        """Ask for the results that these sections lack; apply what has come."""
        for name in behind:
            link = self.links[name]
            if link.rounds.open is None:
                link.begin()
            if link.complete:
                self._apply_link(link)
            elif link.rounds.open is not None:
                link.rounds.open.asked = -math.inf
                link.tick()

    def end(self) -> None:
        """The view is over for this node: rounds still open are void, and publishers keep what they had lost."""
        for link in self.links.values():
            link.rounds.open = None
            link.exchange.fold_errors()
        self._in_flight = False

    def _done(self, step: int) -> control_pb2.StepDone:
        """What this node reports of a step that it computed."""
        tally = self._tally
        ring = 0.0  # all-reduce in fp16: 2 (n-1)/n times 2 bytes a parameter leave every member
        for name, link in self.links.items():
            members = len(link.rounds.plan.members)
            ring += 2 * (members - 1) / members * 2 * self.state.sections[name].layout.numel
        done = control_pb2.StepDone(
            view=self.trainer.view,
            step=step,
            seconds=time.monotonic() - self._started_at,
            compute_seconds=tally.compute_seconds,
            bytes_dense=int(ring) + 2 * tally.activation_elements,
            bytes_dense_updates=int(ring),
            notes=self.trainer.notes(self.outgoing.notes()),
        )
        if self.state.model.is_last:
            done.loss_sum, done.tokens, done.samples = tally.loss_sum, tally.tokens, tally.samples
        return done
