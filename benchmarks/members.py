"""A run's members in one loop, without threads, wires or processes: equal_loss measures its small sizes with it.

Optimisers, learning rates, clipping, codecs and outer steps are the project's own; the passes are computed for all
members at once (members_model.py), and a round's sum once for all. So a run of four members of 125,000 parameters takes
about 30 ms a step on one core, and its losses are those of the trainers (tests/node/training/test_members.py).

`Remedy` has what a job cannot ask for: ideas that are tried here before anything is built. Bits are those of the
payloads of contributions and results, without headers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from farflung import compress
from farflung.job.data.facts import Facts
from farflung.job.data.sampling import assign, sample_ids
from farflung.job.schema import Job
from farflung.job.tables.outer import Outer
from farflung.node.data.dataset import Dataset
from farflung.node.models.definition import LanguageModel
from farflung.node.models.factory import model_of
from farflung.node.rounds.arithmetic.aggregator import PUBLISHER
from farflung.node.rounds.arithmetic.applier import outer_step
from farflung.node.rounds.arithmetic.encoder import RoundTerms
from farflung.node.rounds.exchanges import exchange_of
from farflung.node.state.optimizers.learning_rates import learning_rate
from farflung.node.state.optimizers.make_optimizer import make_optimizer
from farflung.node.state.optimizers.optimizers import clip_factor, kept_moments, squared_norm
from farflung.node.state.sections.section import Layout, Section
from farflung.node.state.stage_state import section_parameters
from farflung.node.training.member.view_member import last_outer_round
from farflung.node.training.modes.delta_mode import CLOSING_TIMES
from farflung.proto.words.sections import section_of
from farflung.scheduler import Plan

from . import members_model

EMAS = (0.98, 0.995)
"""Decays a step of the averages of the reference that every run keeps, to say what they would have lost."""


@dataclass(frozen=True)
class Remedy:
    """What is changed in delta mode that no job can ask for."""

    moments: str = ""
    """Moments that members average exactly, "v" or "mv"..."""
    moments_every: int = 0
    """... every so many steps. Counted as 16 bits a value and ring all-reduce."""
    masked: float = 1.0
    """What a round leaves of the first moment where this member's value was sent: DGC's masking is 0."""
    kept: float = 1.0
    """What a round leaves of x - g: the decay of the error feedback."""
    common_clip: bool = False
    """Every member clips by the root mean square of the members' norms."""
    ahead: float = 0.0
    """While a round is in flight, x has so much of the round before added, and taken off when the round comes."""
    codecs: tuple[tuple[float, str], ...] = ()
    """(part of the run, codec): until that part the codec, then the next, at last the job's."""
    outer_follows: bool = False
    """The outer rate follows the learning rate after warm-up."""
    low_rank: int = 0
    """Until the run's end a round sends of each matrix this rank, as Dion and PowerSGD do, and vectors whole."""
    momentum_until: float = 1.0
    """After this part of the run the outer step has no momentum."""


@dataclass
class Ended:
    """What a run leaves."""

    loss: float
    evals: dict[int, float]
    averaged: dict[float, float]
    """Decay a step -> loss of the reference's average."""
    bits: float
    """A parameter and step that a member sends, on average."""
    closing: float
    """The part of these bits that the run's end takes."""
    unclosed: float
    """The loss of the reference before the rounds in int8 that end the run, with which everything is sent."""
    parameters: int


class Members:
    """The members of a job with one stage, ``parallel.pipelines`` of them, with equal shares."""

    def __init__(self, job: Job, facts: Facts, data: Dataset, remedy: Remedy | None = None) -> None:
        self.job, self.facts, self.data, self.remedy = job, facts, data, remedy or Remedy()
        definition = model_of(job, facts)
        assert isinstance(definition, LanguageModel)
        self.family, self.config = definition.family, definition.config
        self.count = int(job.parallel.pipelines)
        self.gradient = job.updates.mode == "gradient"
        names = tuple(f"n{number}0" for number in range(self.count))
        shares = (job.train.microbatches // self.count,) * self.count
        layers = len(definition.layers)
        self.plan = Plan(pipelines=tuple((name,) for name in names), stages=((0, layers - 1),), microbatches=shares)
        self.last = job.run.steps or 0
        self.optimizer = make_optimizer(job)
        names_of = section_parameters(definition, self.plan, (0,))[section_of(0)]
        shapes = {name: definition.shapes[name] for name in names_of}
        self.layout = Layout.of(section_of(0), shapes)
        where = dict(zip(shapes, zip(self.layout.offsets, self.layout.shapes, strict=False), strict=True))
        numel = self.layout.numel
        start = torch.cat([definition.initial(name, job.run.seed).reshape(-1) for name in shapes])
        rows = 1 if self.gradient else self.count
        self.x, self.grad = start.repeat(rows, 1), torch.zeros(self.count, numel)
        shown = self.x.expand(self.count, numel) if self.gradient else self.x
        self.leaves = {name: one.detach().requires_grad_() for name, one in members_model.views(shown, where).items()}
        self.places = members_model.views(self.grad, where)
        self.where = where
        self.g = self.x[0] if self.gradient else start.clone()
        self.sections: list[Section] = []
        for number in range(rows):
            section = Section(self.layout, self.gradient, kept_moments(job, self.optimizer), torch.device("cpu"))
            section.x, section.g, section.grad = self.x[number], self.g, self.grad[number]
            self.sections.append(section)
        until = last_outer_round(0, 0, self.last, job.updates)
        self.terms: RoundTerms = exchange_of(job, self.plan, self.sections[0], names[0], until=until).terms
        self.round_plan = self.terms.plan
        assert self.round_plan.phases == 1, "codecs whose encodings are summed are not simulated"
        self.momentum = torch.zeros(numel) if job.updates.outer_optimizer.momentum else None
        self.feedback = torch.zeros(self.count, numel) if self.terms.explicit else None
        self.errors: dict[int, Tensor] = {}
        self._own, self._offered, self._fed = (torch.zeros(self.count, numel) for _ in range(3))
        self._update, self._before, self._guess = (torch.zeros(numel) for _ in range(3))
        self._open, self._apply_at, self._closed_at = False, 0, 0
        self._unclosed, self._bases = math.nan, dict[str, Tensor]()
        self.round, self.sent, self.extra_bits, self.steps_taken = 0, 0, 0.0, 0

    # ---- passes ------------------------------------------------------------------------------

    def backward(self, step: int) -> None:
        """Every member's gradient of its share of a step, into ``grad``."""
        batch, size = self.job.train.batch, self.job.train.microbatch_size
        positions = list(range((step - 1) * batch, step * batch))
        ids = sample_ids(positions, self.job.run.seed, self.facts.drawn)
        own = assign(ids, self.plan.microbatches, size)
        inputs, targets = self.data.batch([ids[place] for share in own for place in share])
        shape = (self.count, -1, inputs.shape[-1])
        loss = members_model.loss_sum(self.family, self.config, self.leaves, inputs.view(shape), targets.view(shape))
        tokens = targets.numel() / (1 if self.gradient else self.count)
        for place, values in zip(
            self.places.values(), torch.autograd.grad(loss / tokens, list(self.leaves.values())), strict=True
        ):
            place.copy_(values)

    @torch.no_grad()
    def evaluate(self, weights: Tensor) -> float:
        """The validation loss of weights [numel], nats a token."""
        first, count = self.facts.samples, self.facts.validation_samples
        p, total = members_model.views(weights[None], self.where), 0.0
        for begin in range(first, first + count, 64):
            inputs, targets = self.data.batch(range(begin, min(begin + 64, first + count)))
            total += float(members_model.loss_sum(self.family, self.config, p, inputs[None], targets[None]))
        return total / (count * self.facts.context)

    # ---- rounds ------------------------------------------------------------------------------

    def begin_round(self) -> None:
        """Every member offers, every publisher sums: as `Exchange` does, but each blob is decoded once for all."""
        self.round += 1
        self._terms()
        if self.remedy.low_rank and math.isnan(self._unclosed):
            self._low_rank_round()
            return
        terms, codec, together = self.terms, self.terms.codec_of(self.round), self.round_plan.pattern == "all_to_all"
        self._own.zero_()
        self._update.zero_()
        self._offered.copy_(self.grad if self.gradient else self.x - self.g)
        if self.feedback is not None:
            self._offered.add_(self.feedback)
        for part in self.round_plan.parts_in(self.round):
            here, others = slice(part.start, part.stop), self.count - 1
            total = self._update[here]
            publisher = terms.plan.members.index(part.publisher)
            for member in range(self.count):
                blob = self._encoded(codec, self._offered[member, here], part.start, member)
                compress.add(blob, self._own[member, here], known=True)
                total += self._own[member, here] * (terms.weights[member] / terms.divisor)
                self.sent += len(blob) * (others if together else member != publisher)
            if together:
                continue
            if part.index in self.errors:
                total += self.errors[part.index]
            blob = self._encoded(codec, total, part.start, PUBLISHER)
            self.sent += len(blob) * others
            if part.index in self.errors or terms.keeps_errors(self.round):
                self.errors[part.index] = total.clone()
                compress.add(blob, self.errors[part.index], -1.0, known=True)
            compress.decode_into(blob, total, known=True)
        if self.remedy.ahead:
            self._guess = self._before * self.remedy.ahead
            self.x += self._guess

    def _low_rank_round(self) -> None:
        """One power iteration from the last round's right factors, as PowerSGD (arXiv:1905.13727) and Dion
        (arXiv:2504.05295) take: what members sum are P = D Q, orthonormalised, and D^T P, both in bf16, by a ring
        all-reduce. A member takes P (D^T P)^T of its own off, and the rest of D stays in x - g."""
        torch.sub(self.x, self.g, out=self._offered)
        sent = 0
        for name, delta in members_model.views(self._offered, self.where).items():
            own = members_model.views(self._own, self.where)[name]
            update = members_model.views(self._update[None], self.where)[name][0]
            if delta.dim() < 3:
                own.copy_(delta)
                update.copy_(delta.bfloat16().float().mean(0))
                sent += update.numel()
                continue
            rank = min(self.remedy.low_rank, *update.shape)
            if name not in self._bases:
                self._bases[name] = torch.randn(update.shape[1], rank, generator=torch.Generator().manual_seed(0))
            left = (delta @ self._bases[name]).bfloat16().float().mean(0)
            left = torch.linalg.qr(left).Q
            right = delta.transpose(1, 2) @ left
            torch.matmul(left, right.transpose(1, 2), out=own)
            mean = right.bfloat16().float().mean(0)
            torch.matmul(left, mean.T, out=update)
            self._bases[name] = functional.normalize(mean, dim=0)
            sent += left.numel() + mean.numel()
        self.sent += 2 * (self.count - 1) * 2 * sent  # a ring all-reduce of bf16, all members'

    def _encoded(self, codec: compress.Codec, values: Tensor, start: int, rank: int) -> bytes:
        seed = (self.terms.seed + 0x9E3779B9 * start) & (2**63 - 1)
        members = self.count if rank < self.count else 1
        return codec.encode(values, seed=seed, step=self.round, rank=rank, members=members)

    def apply_round(self) -> None:
        """The open round is applied: as `Applier` does."""
        if self.remedy.ahead:
            self.x -= self._guess
        terms = self.terms
        outer = terms.outer if self.round <= terms.outer_until else Outer()
        for part in self.round_plan.parts_in(self.round):
            here = slice(part.start, part.stop)
            momentum = None if self.momentum is None else self.momentum[here]
            update = self._update[here]
            moved = update if outer.is_average else outer_step(outer, update, momentum)
            self.g[here] += moved
            if terms.explicit:
                assert self.feedback is not None
                self.feedback[:, here] = self._offered[:, here] - self._own[:, here]
                progress = self._offered[:, here] - self._fed[:, here]
                self.x[:, here] += moved - progress
            else:
                self.x[:, here] += moved - self._own[:, here]
            self._before[here] = moved
        remedy = self.remedy
        if remedy.kept != 1.0 and self.feedback is not None:
            self.feedback.mul_(remedy.kept)
        elif remedy.kept != 1.0:
            self.x.lerp_(self.g.expand_as(self.x), 1.0 - remedy.kept)
        if remedy.masked != 1.0:
            for section, own in zip(self.sections, self._own, strict=True):
                m = section.moments["m"]
                m.copy_(torch.where(own != 0, m * remedy.masked, m))

    def _terms(self) -> None:
        """What remedies change in this round's terms; what was fed back before it."""
        remedy, done = self.remedy, self.steps_taken / self.last
        if self.feedback is not None:
            self._fed.copy_(self.feedback)
        changes: dict[str, Any] = {}
        for until, codec in (*remedy.codecs, (math.inf, self.job.updates.codec)) if remedy.codecs else ():
            if done < until:
                changes["codec"] = compress.make(codec)
                break
        outer: Outer = self.job.updates.outer_optimizer
        if remedy.outer_follows and done > self.job.train.warmup_steps / self.last:
            rate = learning_rate(self.job.train, self.steps_taken, self.last) / self.job.train.learning_rate
            changes["outer"] = replace(outer, rate=outer.rate * rate)
        if done > remedy.momentum_until:
            changes["outer"] = Outer()
        if changes:
            self.terms = replace(self.terms, **changes)

    # ---- steps -------------------------------------------------------------------------------

    def step(self, step: int) -> None:
        """One step of all members, as the trainers take it."""
        self.backward(step)
        if self.gradient:
            self._gradient_step(step)
        else:
            self._delta_step(step)

    def _gradient_step(self, step: int) -> None:
        if self.count > 1:
            self.begin_round()
            if self.terms.keeps_errors(self.round):
                self.feedback = self._offered - self._own
            self.grad[0] = self._update
        norm = math.sqrt(squared_norm(self.grad[0]))
        self.steps_taken += 1
        self._optimise(self.sections[0], step, norm)

    def _delta_step(self, step: int) -> None:
        updates = self.job.updates
        overlap, due, last = int(updates.overlap), step % updates.interval == 0, step == self.last
        norms = [math.sqrt(squared_norm(row)) for row in self.grad]
        if self.remedy.common_clip:
            norms = [math.sqrt(math.fsum(norm**2 for norm in norms) / len(norms))] * len(norms)
        if self._open and step >= self._apply_at:
            self._applied()
        self.steps_taken += 1
        for section, norm in zip(self.sections, norms, strict=True):
            if math.isfinite(norm):
                self._optimise(section, step, norm)
        if self.remedy.moments_every and step % self.remedy.moments_every == 0:
            self._average_moments()
        if due:
            if self._open:
                self._applied()
            self.begin_round()
            self._open = True
            self._apply_at = step + overlap
            if last or not overlap:
                self._applied()
        if last:
            if self._open:
                self._applied()
            self._closed_at, self._unclosed = self.sent, self.evaluate(self.g)
            lossy = updates.codec != "none"
            if self.feedback is not None:
                self.feedback.zero_()
            for _ in range(updates.fragments * CLOSING_TIMES if lossy else updates.fragments - due):
                self.begin_round()
                self._applied()

    def _applied(self) -> None:
        self.apply_round()
        self._open = False

    def _optimise(self, section: Section, step: int, norm: float) -> None:
        train = self.job.train
        factor = clip_factor(norm, train.clip) if self.optimizer.clips(self.steps_taken) else 1.0
        if factor != 1.0:
            section.grad.mul_(factor)
        self.optimizer.step(section, self.steps_taken, learning_rate(train, step, self.last))

    def _average_moments(self) -> None:
        for name in self.remedy.moments:
            mean = torch.stack([section.moments[name] for section in self.sections]).mean(0)
            for section in self.sections:
                section.moments[name].copy_(mean)
            self.extra_bits += 16 * 2 * (self.count - 1) / self.count

    def run(self) -> Ended:
        """The whole run."""
        every, evals = self.job.train.eval_every, dict[int, float]()
        g = self.g
        averages: dict[float, Tensor] = {}
        for step in range(1, self.last + 1):
            self.step(step)
            for decay in EMAS:
                averages.setdefault(decay, g.clone()).lerp_(g, 1 - decay)
            if step == self.last or (every and step % every == 0):
                evals[step] = self.evaluate(g)
        a_member = 8 / self.count / self.layout.numel / self.last
        closing = (self.sent - self._closed_at) * a_member if not self.gradient else 0.0
        return Ended(
            evals[self.last],
            evals,
            {decay: self.evaluate(one) for decay, one in averages.items()},
            self.sent * a_member + self.extra_bits / self.last,
            closing,
            evals[self.last] if self.gradient else self._unclosed,
            self.layout.numel,
        )


def simulated(job: Job, facts: Facts, data: Dataset, remedy: Remedy | None = None) -> Ended:
    """A job's run, of equal members and one stage."""
    return Members(job, facts, data, remedy).run()
