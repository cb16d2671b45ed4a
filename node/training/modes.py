"""How a step ends: with one optimiser step of everybody (``gradient``), or with a local step and rounds (``delta``).

Both have a commit point (node/training/commit.py). Nothing that must be atomic changes before it, and after it nothing
waits.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from ...job.sampling import unfinished_of_each
from ...job.schema import Updates
from ..rounds.messages import Result
from ..rounds.round_link import RoundLink
from ..state.optimizers import squared_norm

if TYPE_CHECKING:
    from .steps import Training


CLOSING, CLOSING_TIMES = "int8", 2
"""At the run's end the vector goes so many times with this codec: each leaves less than a hundredth, and together they
take half of the bytes of ``none``."""
MASKED_CLOSING = 8
"""Contributions that are masked go with their own codec, so many times."""


class Mode(Protocol):
    """What a training does with the gradients of a step, and with what is open when the view ends."""

    @property
    def reached(self) -> int:
        """The step up to which g has what this node's pipeline learnt in this view."""

    @property
    def is_settled(self) -> bool:
        """Whether g holds all that was trained before this view: then it is what ``missing`` says of the stream."""

    def missing(self, step: int) -> list[list[int]]:
        """Of each pipeline, the positions of the stream that it took in this view's steps up to ``step``, and whose
        effect is not all in g."""

    def begin(self) -> None:
        """The view starts, before its first step. Raises ViewEnds while it waits for others."""

    def finish(self, step: int) -> None:
        """The gradients of the step are complete on this node. Raises ViewEnds while it waits for others."""

    def finish_committed(self) -> None:
        """The view ends, but the commit point of the step in work has passed: it is finished all the same."""

    def catch_up(self, step: int, norm: float, targets: dict[str, int]) -> bool:
        """After the view: take one more thing that some member has finished; False while something is missing."""

    def settle(self) -> None:
        """The view begins after the last step: finish what its end broke off."""

    def end(self) -> None:
        """The view is over for this node."""


def last_outer_round(base: int, step: int, last_step: int, updates: Updates) -> int:
    """The last round that is an outer step in a view that begins with round ``base`` after ``step``."""
    interval = updates.every // updates.fragments
    return base + max(0, last_step // interval - step // interval)


def _own_norm(links: Mapping[str, RoundLink]) -> float:
    """The norm of what this node offers in the open rounds of all its sections."""
    return math.hypot(*(link.exchange.own_norm for link in links.values()))


class GradientMode:
    """Every step the group averages gradients, and every node takes the same optimiser step: x is g."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self._results: dict[str, tuple[Result, ...]] = {}

    @property
    def reached(self) -> int:
        return self.training.step

    @property
    def is_settled(self) -> bool:
        return True

    def missing(self, step: int) -> list[list[int]]:
        return []

    def begin(self) -> None:
        """Nothing: x is g."""

    def finish(self, step: int) -> None:
        """Average the gradient, agree that everybody has it, take the step."""
        training, links = self.training, self.training.links
        for name, section in training.state.sections.items():
            training.trainer.optimizer.offer(section, step, training.exchanges[name].share)
        for link in links.values():
            link.begin()
        training.wait_for_results()
        square = 0.0
        for name, section in training.state.sections.items():
            first = True
            if name in links:
                self._results[name] = links[name].results
                first = links[name].rounds.plan.members[0] == training.trainer.name
                if links[name].exchange.carries:  # the node's own gradient is needed once more
                    square += self._norm_of(links[name]) if first else 0.0
                    continue
                with training.trainer.clock.coding("add up", name):
                    for here, update in links[name].updates():
                        update.write_to(section.grad[here])
            elif section.feedback is not None:  # the rest of the group is gone: there is nobody to send it to
                section.grad.add_(section.feedback)
                section.feedback = None
            if first:  # each section is counted by one of its members
                square += squared_norm(section.grad)
        training.trainer.offered(_own_norm(links) if links else square)
        training.agree(step, square)
        self._apply(step, training.commit.norm)

    def _norm_of(self, link: RoundLink) -> float:
        with self.training.trainer.clock.coding("add up"):
            return math.fsum(squared_norm(update.values()) for _, update in link.updates())

    def _apply(self, step: int, norm: float) -> None:
        training = self.training
        finite = math.isfinite(norm)
        if finite:
            for link in training.links.values():
                link.exchange.commit_gradient(link.updates() if link.exchange.carries else ())
            training.optimise(step, step, norm)
        elif training.trainer.name == training.commit.committer:
            why = f"step {step} had a gradient that is not finite, or was refused: no node applied it"
            training.trainer.warn("", why)
        for name, section in training.state.sections.items():
            if name in training.links:
                training.links[name].finish(self._results[name], training.job.updates.block)
            else:
                section.round += 1
        training.log.committed(norm)
        training.stepped(step)

    def finish_committed(self) -> None:
        training = self.training
        if training.ready_step == training.commit.step == training.step + 1:
            self._apply(training.commit.step, training.commit.norm)

    def catch_up(self, step: int, norm: float, targets: dict[str, int]) -> bool:
        """Another member had seen the commit of the step that this node was ready for when the view ended."""
        training = self.training
        if step == training.step + 1 == training.ready_step:
            training.commit.committed(step, norm)
            self._apply(step, norm)
        return step == training.step

    def settle(self) -> None:
        """A step is whole or did not happen: there is nothing to finish."""

    def end(self) -> None:
        """An open step is void, and publishers keep what their encodings have lost."""
        for link in self.training.links.values():
            link.rounds.open = None
            link.exchange.fold_errors()


class DeltaMode:
    """Local optimiser steps on x; rounds of encoded x - g move g.

    With ``fragments`` a round carries one of them, and they follow each other through ``every`` steps (streaming
    DiLoCo, Douillard et al., 2025).
    """

    def __init__(self, training: Training) -> None:
        self.training = training
        updates = training.job.updates
        self.fragments = updates.fragments
        chosen = training.plan.overlap
        self._interval, self._overlap = updates.interval, int(updates.overlap if chosen is None else chosen)
        self._free = training.is_alone and updates.outer_optimizer.is_average
        """g := x costs nothing, so it happens every step."""
        start = [training.position.step] * len(training.plan.pipelines)
        self._counted_at = deque([start] * self.fragments, self.fragments)
        """For each fragment, the steps in which the last round began that counted everything of a pipeline."""
        self._unsettled = self.fragments
        """Rounds until g holds what the views before have left in x."""
        self._in_flight = False
        self._begun = self._apply_at = 0
        self._chased: set[tuple[str, int]] = set()

    @property
    def reached(self) -> int:
        """The step up to which g has what this node's pipeline learnt in this view."""
        return min(steps[self.training.pipeline] for steps in self._counted_at)

    @property
    def is_settled(self) -> bool:
        return self._unsettled <= 0

    def missing(self, step: int) -> list[list[int]]:
        training, train = self.training, self.training.job.train
        counted = [min(steps) for steps in zip(*self._counted_at, strict=True)]
        return unfinished_of_each(
            training.position,
            counted,
            step,
            training.plan.microbatches,
            train.microbatch,
            training.job.run.seed,
            training.trainer.facts.samples,
        )

    def begin(self) -> None:
        """Nothing: a new node begins with x at g."""

    def finish(self, step: int) -> None:
        """A local step; a round begins every ``every / fragments`` steps and is applied ``overlap`` steps later."""
        training = self.training
        square = sum(squared_norm(section.grad) for section in training.state.sections.values())
        if not training.links:
            training.trainer.offered(square)
        training.agree(step, square)
        if self._in_flight and step >= self._apply_at:
            self._apply_round()
        self._local_step(step, training.commit.norm)
        if self._free:
            self._flush(self.fragments)
            return
        due = step % self._interval == 0
        last = step == training.last_step
        if due:
            self._begin_round(step + self._overlap)
            if last or not self._overlap:
                self._apply_round()
        if last:
            self._close(due)

    def _close(self, due: int = 0) -> None:
        """The run ends: all of S goes into g. ``due``: rounds of this step that have brought in a fragment already."""
        training = self.training
        updates, plan = training.job.updates, training.plan
        codecs = {plan.update_codec(stage) or updates.codec for stage in range(len(plan.stages))}
        if not updates.agreed or training.is_alone or codecs == {"none"}:
            self._flush(self.fragments - due)
            return
        self._flush(self.fragments * (MASKED_CLOSING if updates.secure else CLOSING_TIMES))

    def _flush(self, rounds: int) -> None:
        """What is still in x - g goes into g, now: these rounds have no next step to hide behind.

        They are plain averages. An outer step is one of ``every`` steps; here its momentum would only carry g on.
        """
        for _ in range(rounds):
            self._begin_round(self.training.step)
            self._apply_round()

    def _begin_round(self, apply_at: int) -> None:
        """Send x - g on its way; it is applied in step ``apply_at``, before the optimiser."""
        if self._in_flight:
            self._apply_round()
        for link in self.training.links.values():
            link.rounds.last = self.training.step >= self.training.last_step
            link.begin()
        if self.training.links:
            self.training.trainer.offered(_own_norm(self.training.links))
        self._in_flight, self._begun, self._apply_at = True, self.training.step, apply_at

    def _local_step(self, step: int, norm: float) -> None:
        """The pipeline's step was committed: every node of it moves its x."""
        training = self.training
        if math.isfinite(norm):
            training.state.optimizer_steps += 1
            for exchange in training.exchanges.values():
                exchange.x_moves()
            training.optimise(training.state.optimizer_steps, step, norm)
        elif training.trainer.name == training.commit.committer:
            why = f"step {step} of pipeline {training.pipeline} had a gradient that is not finite: dropped"
            training.trainer.warn(training.trainer.name, why)
        training.stepped(step)

    def _apply_round(self) -> None:
        """Wait for the round in flight and move g and x by it."""
        training, links = self.training, self.training.links
        training.wait_for_results()
        absent: set[int] = set()
        for name, section in training.state.sections.items():
            if name in links:
                absent |= {training.plan.pipeline_of(one) for one in links[name].absent}
                if training.judge is not None:
                    links[name].judge(training.judge)
                self._apply(links[name])
            else:
                training.exchanges[name].apply_alone(section.round + 1)
                section.round += 1
        self._in_flight = False
        self._unsettled -= 1
        before = self._counted_at[0]  # fragments take turns
        self._counted_at.append([old if d in absent else self._begun for d, old in enumerate(before)])

    def _apply(self, link: RoundLink) -> None:
        results = link.results
        with self.training.trainer.clock.coding("apply"):
            link.exchange.apply_delta(link.updates(), results)
        link.finish(results, self.training.job.updates.block)

    def finish_committed(self) -> None:
        training = self.training
        if training.ready_step == training.commit.step == training.step + 1:
            self._local_step(training.commit.step, training.commit.norm)

    def catch_up(self, step: int, norm: float, targets: dict[str, int]) -> bool:
        """Ask for the results that sections lack; apply what has come."""
        behind = self._behind(targets)
        for name in behind:
            link = self.training.links[name]
            if link.rounds.open is None:
                link.begin()
            if (name, link.rounds.applied) not in self._chased:
                self._chased.add((name, link.rounds.applied))
                link.is_applied_elsewhere()
                link.ask()
            link.tick()
            if link.complete:
                self._apply(link)
        return not behind

    def settle(self) -> None:
        """The run's last rounds were broken off: once more."""
        self._close()

    def _behind(self, targets: dict[str, int]) -> Iterable[str]:
        """Sections of which some member has applied a round that this node has not."""
        late = []
        for name, section in self.training.state.sections.items():
            if section.round < targets.get(name, 0):
                if name in self.training.links:
                    late.append(name)
                else:
                    section.round = targets[name]  # alone in the section: there is nobody to be behind of
        return late

    def end(self) -> None:
        """Rounds still open are void, and publishers keep what their encodings have lost."""
        for link in self.training.links.values():
            link.rounds.open = None
            link.exchange.fold_errors()
        self._in_flight = False
