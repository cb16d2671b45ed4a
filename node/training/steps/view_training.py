"""Training in one view: step after step, with evaluations and checkpoints, until the last step or the view's end."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from ....job.data.sampling import assign, sample_ids
from ....proto import control_pb2, data_pb2
from ....proto.errors import FarflungError
from ....proto.messages import bodies
from ....scheduler.workloads.ladder import link_ladder
from ...context import NodeContext
from ...models.definition import LanguageModel
from ...models.stage import Pass
from ...pipeline.activations import Incoming, Outgoing
from ...pipeline.chunk import Chunk, ScheduleSlot
from ...pipeline.neighbours import MAIL_KINDS, Neighbours
from ...pipeline.runner import Runner, StageRunner
from ...pipeline.spread_pass import SpreadPass
from ...pipeline.tally import Tally
from ...state.stage_state import StageState
from ..member.view_member import COMMIT_KINDS, ViewMember, ViewStart
from ..modes.delta_mode import DeltaMode
from ..modes.gossip_mode import UnagreedMode
from ..modes.gradient_mode import GradientMode
from ..modes.mode import Mode
from ..resources import Resources
from .early_offers import EarlyOffers
from .milestones import Milestones
from .step_report import StepReport
from .texts import StageTexts
from .trying import Trying

MIXING_KINDS = {data_pb2.DIFFERENCE, data_pb2.WEIGHTS_REQUEST, data_pb2.WEIGHTS}


class ViewTraining:
    """A node's training in one view. Built when the view is prepared, ``run`` once it starts."""

    def __init__(self, context: NodeContext, resources: Resources, state: StageState, start: ViewStart) -> None:
        self.context, self.resources, self.state = context, resources, state
        self.view = view = ViewMember(context, resources, state, start)
        job, plan = view.job, view.plan
        self.size = job.train.microbatch_size // plan.pieces_of(view.pipeline)
        """Samples of a microbatch of this pipeline, in steps that are no trials."""
        self.started = False
        self.trying = Trying(view, state)
        self._neighbours = Neighbours(context, resources.waiting.on, self.trying.least)
        self.mode: Mode = mode_of(view)
        self.chunks = self._neighbours.chunks = self._chunks()
        if resources.island is not None:
            frozen = [values for _, values in state.frozen()]
            sections, apart = list(state.sections.values()), state.computes_on is not None
            resources.island.place(plan, context.name, frozen, sections, apart=apart)
            view.spread_rounds()
        self.texts: list[StageTexts] = []
        """The texts of each of this node's stages."""
        if isinstance(context.definition, LanguageModel):
            self.texts = [StageTexts(view, stage, context.definition) for stage in state.stages]
        positions = len(dict.fromkeys(plan.pipelines[view.pipeline]))
        self.runner: Runner = resources.own or StageRunner(
            self.chunks,
            ScheduleSlot(state.stages[0], positions, plan.schedule, plan.in_flight_of(view.pipeline, state.stages[0])),
            resources.data,
            self._neighbours,
            context,
            loss_scale=lambda: state.loss_scale,
        )
        self.early: EarlyOffers | None = None
        if isinstance(self.runner, StageRunner) and resources.island is None:
            self.early = EarlyOffers(view, self.chunks, state.gradients)
            self.runner.last_backward = self.early.last_backward
        self.report = StepReport(view, self.chunks, self.trying)
        view.report_step = self.report.finished
        self.milestones = Milestones(view, self.mode, self.runner, self.size)
        self.milestones.save, self.milestones.evaluate = start.save, start.evaluate
        view.is_due = self.milestones.is_due

    def _chunks(self) -> list[Chunk]:
        """This node's stages, each with its ends of the links to the stages before and after."""
        job, ends, row = self.view.job, self.resources.ends, self.view.plan.pipelines[self.view.pipeline]
        last = len(row) - 1
        chunks = []
        island, me = self.resources.island, self.context.name
        for number, (stage, model) in enumerate(zip(self.state.stages, self.state.models, strict=True)):
            before, after = row[stage - 1] if stage else None, row[stage + 1] if stage < last else None
            ahead, back = self._link_codecs(me, after)[0], self._link_codecs(before, me)[1]
            sender, receiver = ends.sender(after, model.last + 1, ahead), ends.receiver(before, model.first)
            incoming = Incoming(receiver, partial(self._neighbours.ask_again, before, model.first))
            begin = partial(Pass, model) if island is None else partial(SpreadPass, island, number, model)
            outgoing = Outgoing(job.activations, job.run.seed, sender, ahead, back, job.train.precision)
            chunks.append(Chunk(stage, model, begin, before, after, outgoing, incoming))
        ends.keep(
            {(chunk.after, chunk.model.last + 1) for chunk in chunks}
            | {(chunk.before, chunk.model.first) for chunk in chunks}
        )
        return chunks

    def _link_codecs(self, sender: str | None, receiver: str | None) -> tuple[str, str]:
        """The plan's (forward, backward) codecs of a link between two stages; empty: the job's are used."""
        chosen = None if sender is None or receiver is None else self.view.plan.link_codec(sender, receiver)
        if chosen is None:
            return "", ""
        activations = self.view.job.activations
        return chosen, dict(link_ladder(activations.forward, activations.backward)).get(chosen, activations.backward)

    # ---- the loop --------------------------------------------------------------------------

    def run(self) -> None:
        """Train from the view's first step to the run's last. Raises ViewEnds when the view ends before."""
        self.started = True
        view, context = self.view, self.context
        view.introduce()
        if view.why_nobody_judges and view.plan.nodes[0] == context.name:
            context.warn("", f"nobody judges contributions in view {context.view}: {view.why_nobody_judges}")
        self.mode.begin()
        self.milestones.begin(view.step)
        if view.step >= view.last_step:  # the view before ended after the last step, before its milestones
            self.mode.settle()
            self.milestones.after(view.step)
        while view.step < view.last_step:
            step = view.step + 1
            context.wire.doing = f"trains step {step}"
            self.trying.place(step)
            self.report.begin()
            with self.resources.tracing.step(step):
                self.report.tally = self._compute(step)
                self.report.warn_of_troubles(step)
                self.mode.finish(step)
                context.pump(0.0)
                self.milestones.after(step)
            self._passed(step)
        view.is_done = True
        self._passed(view.step)

    def _passed(self, step: int) -> None:
        """The end of a step: g has the same rounds on all stages."""
        self.view.passed = step
        for text in self.texts:
            text.boundary(step)

    def _compute(self, step: int) -> Tally:
        """Forward and backward passes of this pipeline's share of the step."""
        view, clock, island = self.view, self.context.clock, self.resources.island
        share = self._share(step)
        microbatches = self._cut(step, share)
        ends = any(chunk.model.is_first or chunk.model.is_last for chunk in self.chunks)
        if self.resources.own is None and (ends or self.context.facts.packed or self.context.definition.needs_tokens):
            then = self._share(step + 1) if step < view.last_step else []
            self.resources.data().ahead(share + then)
            self.resources.data().announce(microbatches + self._cut(step + 1, then))
        scale = 1.0
        balanced = isinstance(self.context.definition, LanguageModel) and self.context.definition.balance
        if self.state.is_last or balanced:
            # The loss is the mean over target tokens: of the whole step if pipelines' gradients are summed, else of
            # this pipeline.
            counted = self._samples(step) if view.gradient else share
            trained = self.resources.data().trained(counted)
            if trained is None:  # all samples have the same number of targets
                one = self.state.models[-1].target_count(self.resources.data().batch(share[:1])[1])
                trained = one * len(counted)
            scale /= trained
        sections = self.state.sections.values()
        if island is not None:
            with clock.computing("share"):
                island.share(sections)
        if self.state.computes_on is not None:
            with clock.computing("weights to the device"):
                self.state.fresh()
        whole = self.resources.ranks is None
        if whole:
            self.state.gradients.begin()
        if self.early is not None:
            self.early.begin(step)
        tally = self._passes(step, microbatches, scale)
        if whole:
            self.state.gradients.end()
        if island is not None:
            with clock.computing("sum gradients"):
                island.sum(sections)
        if self.state.loss_scale is not None:
            self._unscale(tally.loss_scale)
        return tally

    def _passes(self, step: int, microbatches: list[list[int]], scale: float) -> Tally:
        """The passes of a step. If the step is a trial that takes too much memory, this raises ViewEnds."""
        self.trying.begin(step)
        if isinstance(self.runner, StageRunner):
            self.runner.in_flight = self.trying.in_flight(step)
        try:
            tally = self.runner.step(step, microbatches, scale)
        except (RuntimeError, MemoryError, FarflungError) as problem:
            if not self.trying.may_fail(step, problem):
                raise
        else:
            self.trying.end(step)
            return tally
        self.trying.failed(step)  # outside: the error holds what the passes have kept

    def _unscale(self, scale: float) -> None:
        """fp16: divide the gradients by the loss scale that they have. A node that has joined the pipeline since may
        have begun with another one: the last stage's counts."""
        if self.state.loss_scale is not None and self.state.loss_scale.scale != scale:
            self.state.loss_scale = replace(self.state.loss_scale, scale=scale, good=0)
        with self.context.clock.computing("unscale"):
            if self.resources.ranks is not None:
                self.resources.ranks.unscale(1 / scale)
            else:
                for section in self.state.sections.values():
                    section.grad.mul_(1 / scale)

    def _share(self, step: int) -> list[int]:
        """The ids of this pipeline's samples of a step."""
        view, samples = self.view, self._samples(step)
        own = assign(samples, view.plan.microbatches, view.job.train.microbatch_size)[view.pipeline]
        return [samples[i] for i in own]

    def _cut(self, step: int, share: list[int]) -> list[list[int]]:
        """The samples of each microbatch of a step."""
        size = self.trying.size(step)
        return [share[i : i + size] for i in range(0, len(share), size)]

    def _samples(self, step: int) -> list[int]:
        """The ids of a step's samples, of all pipelines."""
        positions = self.view.position.positions(step, self.view.job.train.batch)
        return sample_ids(positions, self.view.job.run.seed, self.context.facts.drawn)

    # ---- what arrives ----------------------------------------------------------------------

    def handle(self, sender: str, header: data_pb2.Header, payload: npt.NDArray[np.uint8]) -> None:
        """Handle a message of this view that belongs to no round. ValueError: it is not valid."""
        if header.kind in MAIL_KINDS:
            self._neighbours.deliver(sender, header.kind, header.activation, payload, self.view.step)
        elif header.kind in COMMIT_KINDS:
            self.view.handle_commit(sender, header)
        elif (said := bodies.of_text(header)) is not None:
            layer = 0 if isinstance(said, data_pb2.TextToken) else said.layer  # tokens go to the first stage
            for text in self.texts:
                if text.first_layer == layer:
                    text.handle(sender, said, payload)
        elif header.kind in MIXING_KINDS:
            if not isinstance(self.mode, UnagreedMode):
                raise ValueError("the nodes of this run agree on their weights")
            self.mode.handle(sender, header, payload)
        elif header.kind == data_pb2.NACK:
            self._neighbours.send_again(sender, header.missing_samples)

    def write(self, order: control_pb2.Write) -> None:
        """The coordinator orders a text of this pipeline, or the end of one."""
        for text in self.texts:
            if text.first_layer == 0:
                text.order(order)

    @property
    def has_text_to_compute(self) -> bool:
        """Whether a pass of a text waits to be computed."""
        return any(text.can_compute for text in self.texts)

    def tick(self) -> None:
        """Do what is due by time: requests of rounds, answers to spares, one pass of a text."""
        for link in self.view.links.values():
            link.tick()
        self.view.log.tick()
        any(text.work() for text in self.texts)  # one pass at most


def mode_of(view: ViewMember) -> Mode:
    """The mode object of a view, by the job's ``updates.mode``."""
    if view.gradient:
        return GradientMode(view)
    return DeltaMode(view) if view.job.updates.agreed else UnagreedMode(view)
