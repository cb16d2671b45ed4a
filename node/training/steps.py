"""Training in one view: steps, rounds, evaluations and checkpoints, until the last step or the end of the view."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ... import compress
from ...job.sampling import Position, assign, sample_ids
from ...job.schema import Facts, Job
from ...proto import control_pb2, data_pb2
from ...scheduler import Plan
from ...scheduler.ladder import link_ladder
from ..models.definition import LanguageModel
from ..models.stage import Pass
from ..pipeline.activations import Incoming, Outgoing, notes_of, without_state
from ..pipeline.runner import Chunk, Place, Runner, StageRunner, Tally
from ..rounds.exchange import Exchange
from ..rounds.judge import cannot_judge, judge_of
from ..rounds.log import RoundLog
from ..rounds.machine import Rounds
from ..rounds.masked import MaskedExchange
from ..rounds.phased import PhasedExchange, phases_of
from ..rounds.round_link import ENOUGH, RoundLink
from ..state.checkpoint import shard_of, tensors_of
from ..state.optimizers import Optimizer, clip_factor, learning_rate
from ..state.rests import rest_of
from ..state.section import Section
from ..state.stage_state import TIED, StageState, codec_of, round_plan
from ..state.tensor_writer import written
from .commit import Commit
from .gossip_mode import UnagreedMode
from .modes import CLOSING, DeltaMode, GradientMode, Mode, last_outer_round
from .say_again import SayAgain
from .texts import StageTexts
from .waiting import Peers

if TYPE_CHECKING:
    from .trainer import Trainer

MIXING_KINDS = {data_pb2.DIFFERENCE, data_pb2.WEIGHTS_REQUEST, data_pb2.WEIGHTS}
TEXT_KINDS = {data_pb2.TEXT_BEGIN, data_pb2.TEXT, data_pb2.TEXT_TOKEN, data_pb2.TEXT_END}
BULK, ROUND, URGENT = 2, 1, 0
"""Priorities on a link: state transfers after rounds after activations."""


class ViewEnds(Exception):
    """The coordinator has announced another view: flush."""

    def __init__(self, order: control_pb2.Flush) -> None:
        super().__init__(order.why)
        self.order = order


class Training:
    """A node's training in one view. Built when the view is prepared, ``run`` once it starts."""

    def __init__(
        self,
        trainer: Trainer,
        state: StageState,
        plan: Plan,
        position: Position,
        save: bool = False,
        evaluate: bool = False,
        followed: frozenset[int] = frozenset(),
    ) -> None:
        """``followed``: stages that spares follow."""
        job = trainer.job
        self.evaluate = evaluate
        """The view before has not made an evaluation that was due: this one begins with it. Without agreed rounds there
        are no common weights then: it is made after the first step."""
        self.save = save
        """A checkpoint is wanted as soon as g holds everything before this view, and is not begun."""
        self.trainer, self.state, self.plan, self.position = trainer, state, plan, position
        self.job = job
        self.gradient = job.updates.mode == "gradient"
        self.pipeline = plan.pipeline_of(trainer.name)
        self.size = job.train.microbatch // plan.pieces_of(self.pipeline)
        """Samples of a microbatch of this pipeline."""
        self.step = position.step
        self.ready_step = position.step
        self.passed = position.step
        """The last step of which nothing is left to do."""
        self.rests = False
        """Whether all steps are done."""
        self.base_round = max((section.round for section in state.sections.values()), default=0)
        self.view = trainer.view
        self.started = False
        ends = (0, len(plan.stages) - 1)
        single = len(plan.pipelines) == 1 and (trainer.definition.tied_trained is None or len(plan.stages) == 1)
        self.is_alone = single and not followed
        """No section has a second member, or a spare that follows it: no round has anybody to wait for."""
        self.last_step = last_step_of(job, trainer.facts, position)
        members = plan.nodes if self.gradient else tuple(dict.fromkeys(plan.pipelines[self.pipeline]))
        self.commit = Commit(members, trainer.name, position.step)
        until = last_outer_round(self.base_round, position.step, self.last_step, job.updates)
        self.exchanges: dict[str, Exchange] = {}
        self.links: dict[str, RoundLink] = {}
        """The rounds of the sections that have other members."""
        for name, section in state.sections.items():
            follows = any(name == f"stage-{stage}" or (name == TIED and stage in ends) for stage in followed)
            exchange = exchange_of(job, plan, section, trainer.name, followed=follows, until=until)
            self.exchanges[name] = exchange
            exchange.place = trainer.wire.place
            rounds = exchange.plan
            if len(rounds.members) > 1 or follows:
                self.links[name] = RoundLink(
                    exchange,
                    Rounds(rounds, trainer.name, section.round, section.chain),
                    self.send_round,
                    trainer.refuse,
                    trainer.diverged,
                    coding=trainer.clock.coding,
                    audit=job.updates.audit,
                    sending=lambda: trainer.wire.under_way,
                    signer=trainer.signer,
                )
        self.log = RoundLog(self.links, trainer.send)
        self.judge = judge_of(trainer, state, plan, position, self.base_round, self.last_step, spare=False)
        self._tally = Tally()
        self._told: set[tuple[int, str]] = set()
        self._started_at = 0.0
        self.mode: Mode = (
            GradientMode(self) if self.gradient else (DeltaMode if job.updates.agreed else UnagreedMode)(self)
        )
        self.chunks = self._chunks()
        if trainer.island is not None:
            trainer.island.place(plan, trainer.name, [values for _, values in state.frozen()])
        definition = trainer.definition
        self.texts: list[StageTexts] = []
        """Of each of this node's stages."""
        if isinstance(definition, LanguageModel):
            self.texts = [StageTexts(self, stage, definition) for stage in state.stages]
        positions = len(dict.fromkeys(plan.pipelines[self.pipeline]))
        self.runner: Runner = trainer.own or StageRunner(
            self.chunks,
            Place(state.stages[0], positions, plan.schedule, plan.in_flight_of(self.pipeline, state.stages[0])),
            lambda: trainer.data,
            trainer.take,
            trainer.has,
            trainer.pump,
            self._send_activation,
            self._spoiled,
            trainer.device,
            job.train.precision,
            trainer.clock,
            trainer.waiting.on,
            trainer.facts.packed,
        )

    def _chunks(self) -> list[Chunk]:
        """This node's stages, each with its ends of the links to the stages before and after."""
        job, ends, row = self.job, self.trainer.ends, self.plan.pipelines[self.pipeline]
        last = len(row) - 1
        chunks = []
        island = self.trainer.island
        for number, (stage, model) in enumerate(zip(self.state.stages, self.state.models, strict=True)):
            before, after = row[stage - 1] if stage else None, row[stage + 1] if stage < last else None
            name = self.trainer.name
            ahead, back = self._link_codecs(name, after)[0], self._link_codecs(before, name)[1]
            sender, receiver = ends.sender(after, model.last + 1, ahead), ends.receiver(before, model.first)
            incoming = Incoming(receiver, partial(self._nack, before, model.first))
            begin = partial(Pass, model) if island is None else partial(island.begin, number, model)
            outgoing = Outgoing(job.activations, job.run.seed, sender, ahead, back)
            chunks.append(Chunk(stage, model, begin, before, after, outgoing, incoming))
        ends.keep(
            {(chunk.after, chunk.model.last + 1) for chunk in chunks}
            | {(chunk.before, chunk.model.first) for chunk in chunks}
        )
        return chunks

    def _link_codecs(self, sender: str | None, receiver: str | None) -> tuple[str, str]:
        """(forward, backward) of a link between two stages as the plan has it; empty where the job's are used."""
        chosen = None if sender is None or receiver is None else self.plan.link_codec(sender, receiver)
        if chosen is None:
            return "", ""
        activations = self.job.activations
        return chosen, dict(link_ladder(activations.forward, activations.backward)).get(chosen, activations.backward)

    @property
    def committed_norm(self) -> float:
        return self.commit.norm if self.commit.step == self.step else 0.0

    # ---- the loop --------------------------------------------------------------------------

    def run(self) -> None:
        """Train from the view's first step to the run's last. Raises ViewEnds when the view ends before."""
        self.started = True
        for link in self.links.values():
            link.introduce()
        self.wait(lambda: not self._unknown(), "wait for keys", self._unknown, self._introduce_again)
        why = cannot_judge(self.trainer, self.plan) if self.job.updates.judge else ""
        if why and self.plan.nodes[0] == self.trainer.name:
            self.trainer.warn("", f"nobody judges contributions in view {self.view}: {why}")
        self.mode.begin()
        if self.evaluate and self.job.updates.agreed and self.step < self.last_step:
            self.evaluate = False
            with self.trainer.clock.span("evaluation"):
                self._evaluate(self.step)
        self._save_if_settled(self.step)
        if self.step >= self.last_step:  # the view before ended between the last step and what was due there
            self.mode.settle()
            self._milestones(self.step)
        while self.step < self.last_step:
            step = self.step + 1
            self.trainer.wire.doing = f"trains step {step}"
            self._started_at = time.monotonic()
            self.trainer.clock.reset()
            with self.trainer.tracing.step(step):
                self._tally = self._compute(step)
                self._tell_troubles(step)
                self.mode.finish(step)
                self.trainer.pump()
                self._milestones(step)
            self._passed(step)
        self.rests = True
        self._passed(self.step)

    def _passed(self, step: int) -> None:
        """The end of a step: g has the same rounds on all stages."""
        self.passed = step
        for text in self.texts:
            text.boundary(step)

    def write(self, order: control_pb2.Write) -> None:
        """The coordinator wants a text of this pipeline, or no more of one."""
        for text in self.texts:
            if text.first_layer == 0:
                text.order(order)

    @property
    def has_text_to_compute(self) -> bool:
        return any(text.can_compute for text in self.texts)

    def _tell_troubles(self, step: int) -> None:
        """Say what a person should know of this step's numbers, each thing once a view."""
        seen = (step - self.position.step) * self.job.train.batch
        for chunk in self.chunks:
            troubles = {"activations": chunk.outgoing.trouble, "disk": self.trainer.ends.trouble()}
            if chunk.model.is_last and not math.isfinite(self._tally.loss_sum):
                troubles["loss"] = f"the loss of step {step} is not finite"
            verdict = chunk.outgoing.verdict()  # on the samples since it was last asked
            if verdict and seen > 1.5 * self.trainer.facts.samples:  # before that every sample is new to the link
                instead = without_state(self.job.activations.forward)
                troubles["codec"] = f"{verdict}; activations go as {instead} from here on"
                self.trainer.ends.give_up(chunk.after, chunk.model.last + 1)
                chunk.outgoing.keep_no_state()
            for kind, trouble in troubles.items():
                if trouble and (chunk.stage, kind) not in self._told:
                    self._told.add((chunk.stage, kind))
                    self.trainer.warn(self.trainer.name, f"stage {chunk.stage}: {trouble}")

    def _compute(self, step: int) -> Tally:
        """Forward and backward of this pipeline's share of the step."""
        share = self._share(step)
        ends = any(chunk.model.is_first or chunk.model.is_last for chunk in self.chunks)
        if self.trainer.own is None and (ends or self.trainer.facts.packed):
            self.trainer.data.ahead(share + (self._share(step + 1) if step < self.last_step else []))
        microbatches = [share[i : i + self.size] for i in range(0, len(share), self.size)]
        scale = 1.0
        if self.state.is_last:
            # The mean over target tokens: of the whole step where pipelines' gradients are summed, else of our own.
            counted = self._samples(step) if self.gradient else share
            trained = self.trainer.data.trained(counted)
            if trained is None:  # every sample has as many
                one = self.state.models[-1].target_count(self.trainer.data.batch(share[:1])[1])
                trained = one * len(counted)
            scale /= trained
        sections, island = self.state.sections.values(), self.trainer.island
        if island is not None:
            with self.trainer.clock.computing("share"):
                island.share(section.x for section in sections)
        self.state.gradients.begin()
        tally = self.runner.step(step, microbatches, scale)
        self.state.gradients.end()
        if island is not None:
            with self.trainer.clock.computing("sum gradients"):
                island.sum(section.grad for section in sections)
        return tally

    def _share(self, step: int) -> list[int]:
        """The samples of a step that are this pipeline's."""
        samples = self._samples(step)
        return [samples[i] for i in assign(samples, self.plan.microbatches, self.job.train.microbatch)[self.pipeline]]

    def _samples(self, step: int) -> list[int]:
        """The samples of a step, of all pipelines."""
        positions = self.position.positions(step, self.job.train.batch)
        return sample_ids(positions, self.job.run.seed, self.trainer.facts.samples)

    # ---- what both modes need ----------------------------------------------------------------

    def optimise(self, count: int, step: int, norm: float) -> None:
        """One optimiser step of every section, ``count``-th with these moments, clipped by the global ``norm``."""
        with self.trainer.clock.computing("optimiser"):
            take_step(self.job, self.trainer.facts, self.trainer.optimizer, self.state, count, step, norm)

    def stepped(self, step: int) -> None:
        """The step is finished on this node."""
        self.step = self.trainer.step = step
        self.trainer.wire.report(control_pb2.Report(step=self._done(step)))
        self._tell_step(step)

    def _tell_step(self, step: int) -> None:
        """Show the person at this node its pipeline's part of the step; only the last stage knows the loss."""
        tally, facts = self._tally, self.trainer.facts
        seconds = time.monotonic() - self._started_at
        samples = self.plan.microbatches[self.pipeline] * self.job.train.microbatch
        mean = facts.trained / facts.samples if facts.trained else facts.context
        tokens = tally.tokens or samples * mean  # the last stage counts those that train, others know how many do
        self.trainer.emit(
            {
                "event": "step",
                "time": time.time(),
                "step": step,
                "steps": self.last_step,
                "samples": samples,
                "seconds": seconds,
                "tokens_per_second": tokens / seconds,
                **notes_of([chunk.outgoing for chunk in self.chunks]),
                **({"loss": tally.loss_sum / tally.tokens} if tally.tokens else {}),
            }
        )

    def agree(self, step: int, square: float) -> None:
        """The commit point: returns when every member was ready for the step."""
        self.ready_step = step
        commit = self.commit
        if commit.committer == self.trainer.name:
            if commit.ready(self.trainer.name, step, square):
                self._tell_commit()
        else:
            self._say_ready(step, square)
        again = partial(self._say_ready, step, square)
        self.wait(lambda: commit.step >= step, "wait for the commit", lambda: commit.lacking(step), again)

    def wait_for_results(self) -> None:
        """Handle what arrives until the open rounds are complete. Raises ViewEnds."""
        links = self.links.values()
        self.wait(
            lambda: all(link.complete for link in links),
            "wait for results",
            lambda: {name for link in links for name in link.rounds.lacking()},
        )

    def _unknown(self) -> set[str]:
        """Members whose keys are not here."""
        return {name for link in self.links.values() for name in link.unknown}

    def _introduce_again(self) -> None:
        for link in self.links.values():
            link.introduce(again=True)

    def _say_ready(self, step: int, square: float) -> None:
        if self.commit.committer != self.trainer.name:
            header = data_pb2.Header(kind=data_pb2.READY, step=step, value=square)
            self.trainer.send(self.commit.committer, header, b"", URGENT)

    def _tell_commit(self) -> None:
        for name in self.commit.others:
            self._tell_commit_to(name)

    def _tell_commit_to(self, name: str) -> None:
        header = data_pb2.Header(kind=data_pb2.COMMIT, step=self.commit.step, value=self.commit.norm)
        self.trainer.send(name, header, b"", URGENT)

    def wait(
        self, done: Callable[[], bool], what: str, peers: Peers = tuple, again: Callable[[], None] | None = None
    ) -> None:
        """Handle what arrives until ``done``; ``what`` is waited for, of ``peers()``, and asked for ``again`` now and
        then. Raises ViewEnds."""
        asking = SayAgain()
        with self.trainer.clock.span(what), self.trainer.waiting.on(peers):
            while not done():
                self.trainer.pump(0.05)
                if again is not None and asking.due():
                    again()

    def is_due(self, step: int) -> bool:
        """Whether anything after this step needs the reference: an evaluation or a checkpoint."""
        return (
            self._falls_on(step, self.job.train.eval_every)
            or self._falls_on(step, self.job.checkpoint.every)
            or self.save
            or self.evaluate
        )

    def _falls_on(self, step: int, every: int) -> bool:
        return step == self.last_step or bool(every and step % every == 0)

    def _milestones(self, step: int) -> None:
        """Evaluation and checkpoint where they are due: always at the boundary of a step, with g of one round."""
        if self.evaluate or self._falls_on(step, self.job.train.eval_every):
            self.evaluate = False
            with self.trainer.clock.span("evaluation"):
                self._evaluate(step)
        self.save = self.save or self._falls_on(step, self.job.checkpoint.every)
        self._save_if_settled(step)

    def _save_if_settled(self, step: int) -> None:
        """Make the checkpoint that is wanted, unless g lacks what the views before have left in x."""
        if self.save and self.mode.is_settled:
            self.save = False
            with self.trainer.clock.span("checkpoint"):
                self._checkpoint(step)

    def _evaluate(self, step: int) -> None:
        train = self.job.train
        facts = self.trainer.facts
        ids = list(range(facts.samples, facts.samples + facts.validation_samples))
        chunks = [ids[i : i + train.microbatch] for i in range(0, len(ids), train.microbatch)]
        own = chunks[self.pipeline :: len(self.plan.pipelines)]
        mine = [chunk[i : i + self.size] for chunk in own for i in range(0, len(chunk), self.size)]
        if not chunks:
            return
        self.trainer.wire.doing = f"evaluates after step {step}"
        self.state.use_reference()
        try:
            if self.trainer.island is not None:
                self.trainer.island.share(section.g for section in self.state.sections.values())
            tally = self.runner.evaluate(step, mine)
        finally:
            self.state.use_local()
        if self.state.is_last:
            report = control_pb2.EvalDone(
                view=self.trainer.view, step=step, loss_sum=tally.loss_sum, tokens=tally.tokens
            )
            report.correct, report.predictions = tally.correct, tally.tokens
            self.trainer.wire.report(control_pb2.Report(eval=report))

    def _checkpoint(self, step: int) -> None:
        """One member of each group sends the reference, while training goes on."""
        # What a round in flight, or steps since the last round, have not brought into g is trained again by a restart.
        missing = self.mode.missing(step)
        rests = self.trainer.rests
        keeps = [stage for stage in self.state.stages if self.plan.keeper(stage) == self.trainer.name]
        rest = rest_of(self, step) if rests is not None or keeps else None
        if rests is not None and rest is not None:
            rests.keep(rest)
            kept = control_pb2.Kept(step=step, view=self.view, norm=rest.norm, moved=rest.moved)
            self.trainer.wire.report(control_pb2.Report(kept=kept))
        position = self.position.after(step, self.job.train.batch, sorted(one for own in missing for one in own))
        for stage in keeps:
            needed = written(tensors_of(self.state, stage)).size
            if needed > (free := self.trainer.memory_left()):
                why = f"a copy of stage {stage} to send takes {needed / 1e9:.3g} GB, and {free / 1e9:.3g} GB are free"
                self.trainer.warn(self.trainer.name, f"the checkpoint of step {step} is left out: {why}")
                continue
            file, payload, meta = shard_of(self.state, stage, self.view, step, position, self.trainer.wire.room)
            if rest is not None and not self.gradient:  # of one member, for those who look at g alone
                share = min(exchange.share for exchange in self.exchanges.values())
                meta["unsent"], meta["moved"] = rest.norm / share, rest.moved
            meta["pipelines"] = [list(pipeline) for pipeline in self.plan.pipelines]
            meta["unfinished"] = {str(pipeline): own for pipeline, own in enumerate(missing) if own}
            self.trainer.wire.store(step, file, payload, len(self.plan.stages), meta)

    # ---- messages --------------------------------------------------------------------------

    def send_round(self, to: str, header: data_pb2.Header, payload: Sequence[bytes] | memoryview) -> None:
        self.trainer.send(to, header, payload, ROUND)

    def _send_activation(self, to: str, header: data_pb2.Header, payload: Sequence[bytes]) -> None:
        self.trainer.send(to, header, payload, URGENT)

    def _spoiled(self, node: str, why: str) -> None:
        """A neighbour's message makes no sense: without it the step has no end, and only a view change helps."""
        self.trainer.refuse(node, why, ENOUGH)
        self.wait(lambda: False, "wait for a view", lambda: (node,))

    def _nack(
        self, before: str | None, layer: int, step: int, microbatch: int, samples: Iterable[int], anew: bool
    ) -> None:
        header = data_pb2.Header(kind=data_pb2.NACK, step=step, microbatch=microbatch, samples=list(samples))
        header.layer, header.value = layer, float(anew)
        self.trainer.send(before or "", header, b"", URGENT)

    def handle(self, sender: str, header: data_pb2.Header, payload: npt.NDArray[np.uint8]) -> None:
        """A message of this view that is neither mail nor of a round."""
        if header.kind == data_pb2.READY:
            if self.commit.ready(sender, header.step, header.value):
                self._tell_commit()
            elif self.commit.committer == self.trainer.name and header.step == self.commit.step:
                self._tell_commit_to(sender)  # it would not say it again if it had heard of the commit
        elif header.kind == data_pb2.COMMIT:
            if sender == self.commit.committer:
                self.commit.committed(header.step, header.value)
        elif header.kind in TEXT_KINDS:
            for text in self.texts:
                if text.first_layer == header.layer:
                    text.handle(sender, header, payload)
        elif header.kind in MIXING_KINDS:
            if not isinstance(self.mode, UnagreedMode):
                raise ValueError("the nodes of this run agree on their weights")
            self.mode.handle(sender, header, payload)
        elif header.kind == data_pb2.NACK:
            for chunk in self.chunks:
                if chunk.after == sender and chunk.model.last + 1 == header.layer:
                    samples, anew = list(header.samples), header.value == 1
                    again = chunk.outgoing.again(header.step, header.microbatch, samples, anew)
                    answer = data_pb2.Header(kind=data_pb2.ACTIVATION, step=header.step, microbatch=header.microbatch)
                    answer.layer = header.layer
                    answer.sizes.extend(again.sizes)
                    self._send_activation(sender, answer, again.payload)

    def sender_of(self, kind: int, layer: int) -> set[str]:
        """Who sends activations, or their gradients, that go over the border before ``layer``."""
        back = kind == data_pb2.ACTIVATION_GRADIENT
        ends = [(one.after, one.model.last + 1) if back else (one.before, one.model.first) for one in self.chunks]
        return {name for name, border in ends if name is not None and border == layer}

    def expects(self, sender: str, header: data_pb2.Header) -> bool:
        """Whether an activation comes from the neighbour that sends this kind, for a step that is near."""
        if header.kind == data_pb2.ACTIVATION_GRADIENT:
            known = {(chunk.after, chunk.model.last + 1) for chunk in self.chunks}
        else:
            known = {(chunk.before, chunk.model.first) for chunk in self.chunks}
        evaluation = header.kind == data_pb2.EVALUATION
        samples = self.trainer.facts.validation_samples if evaluation else self.job.train.batch
        near = self.step <= header.step <= self.step + 2
        return (sender, header.layer) in known and near and header.microbatch * self.size < samples

    def tick(self) -> None:
        for link in self.links.values():
            link.tick()
        self.log.tick()
        any(text.work() for text in self.texts)  # one pass at most

    # ---- reports ---------------------------------------------------------------------------

    def pending(self) -> control_pb2.StepDone | None:
        """The report of a step that this node is ready for without knowing whether it is committed."""
        return self._done(self.ready_step) if self.gradient and self.ready_step > self.step else None

    def _done(self, step: int) -> control_pb2.StepDone:
        """What this node reports of a step that it computed."""
        tally, clock = self._tally, self.trainer.clock
        ring = 0.0  # all-reduce in fp16: 2 (n-1)/n times 2 bytes a parameter leave every member
        for name, link in self.links.items():
            members = len(link.rounds.plan.members)
            ring += 2 * (members - 1) / members * 2 * self.state.sections[name].layout.numel
        done = control_pb2.StepDone(
            view=self.view,
            step=step,
            seconds=time.monotonic() - self._started_at,
            compute_seconds=clock.compute,
            codec_seconds=clock.codec,
            wire_seconds=clock.wire,
            waiting_seconds=clock.waiting,
            bytes_dense=int(ring) + 2 * tally.activation_elements,
            bytes_dense_updates=int(ring),
            notes=self.trainer.notes(notes_of([chunk.outgoing for chunk in self.chunks])),
        )
        if self.state.is_last:
            done.samples = tally.samples
            if math.isfinite(tally.loss_sum):  # else there is no loss to speak of
                done.loss_sum, done.tokens = tally.loss_sum, tally.tokens
        return done


def last_step_of(job: Job, facts: Facts, position: Position) -> int:
    """The run's last step, as the view that begins at ``position`` counts it."""
    if job.run.steps is not None:
        return job.run.steps
    return position.last_step((job.run.epochs or 1) * facts.samples, job.train.batch)


def exchange_of(
    job: Job,
    plan: Plan,
    section: Section,
    me: str,
    followed: bool = False,
    follows: bool = False,
    until: float = math.inf,
) -> Exchange:
    """The arithmetic of a section's rounds in a view, for a member; or, ``follows``, for a spare beside it. ``until``:
    the last round that is an outer step."""
    codec = (codec_of(plan, section.layout.section) or job.updates.codec) if job.updates.agreed else "none"
    phases = phases_of(codec)
    masked = job.updates.secure and not follows
    closing = CLOSING if job.updates.mode == "delta" and codec != "none" and not job.updates.secure else ""
    exchange = (MaskedExchange if masked else PhasedExchange if phases else Exchange)(
        section,
        round_plan(plan, section.layout, job.updates, phases, followed, until if closing else math.inf),
        me,
        codec,
        job.updates.dense_rounds,
        job.updates.mode == "gradient",
        job.run.seed,
        job.updates.outer_optimizer,
        job.updates.robust_average,
        follows,
    )
    exchange.outer_until, exchange.closing = until, compress.make(closing) if closing else None
    return exchange


def take_step(
    job: Job, facts: Facts, optimizer: Optimizer, state: StageState, count: int, step: int, norm: float
) -> None:
    """One optimiser step of every section, ``count``-th with these moments, clipped by the global ``norm``."""
    rate = learning_rate(job.train, step, facts.steps)
    factor = clip_factor(norm, job.train.clip) if optimizer.clips(count) else 1.0
    for section in state.sections.values():
        if factor != 1.0:
            section.grad.mul_(factor)
        optimizer.step(section, count, rate)
