"""Delta mode: local optimiser steps, and rounds of the weights' changes x - g."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping

from ....job.data.sampling import unfinished_of_each
from ...rounds.round_link import RoundLink
from ..member.view_member import ViewMember
from .mode import own_norm

CLOSING_TIMES = 2
"""Number of closing rounds at the run's end, with the codec ``CLOSING``: each leaves less than a hundredth of the
vector, and together they take half of the bytes of the codec ``none``."""
MASKED_CLOSING = 8
"""Number of closing rounds if contributions are masked; they keep their own codec."""


class DeltaMode:
    """Local optimiser steps change x; rounds of encoded x - g change g.

    With ``fragments`` each round carries one fragment, and all fragments take their turn within ``every`` steps
    (streaming DiLoCo, Douillard et al., 2025).
    """

    def __init__(self, view: ViewMember) -> None:
        self.view = view
        updates = view.job.updates
        self.fragments = updates.fragments
        chosen = view.plan.overlap
        self._interval, self._overlap = updates.interval, int(updates.overlap if chosen is None else chosen)
        self._free = view.is_alone and updates.outer_optimizer.is_average
        """Whether g := x after every step: without other members it costs nothing."""
        start = [view.position.step] * len(view.plan.pipelines)
        self._counted_at = deque([start] * self.fragments, self.fragments)
        """For each fragment and pipeline, the step in which the last round began that counted all of the pipeline's
        nodes."""
        self._unsettled = self.fragments
        """The number of rounds until g has what earlier views left in x."""
        self._in_flight = False
        self._begun = self._apply_at = 0
        self._chased: set[tuple[str, int]] = set()

    @property
    def reached(self) -> int:
        """The step up to which g has what this node's pipeline learnt in this view."""
        return min(steps[self.view.pipeline] for steps in self._counted_at)

    @property
    def is_settled(self) -> bool:
        return self._unsettled <= 0

    def missing(self, step: int) -> list[list[int]]:
        view, train = self.view, self.view.job.train
        counted = [min(steps) for steps in zip(*self._counted_at, strict=True)]
        return unfinished_of_each(
            view.position,
            counted,
            step,
            view.plan.microbatches,
            train.microbatch_size,
            view.job.run.seed,
            samples=view.context.facts.drawn,
        )

    def begin(self) -> None:
        """Nothing: a new node begins with x at g."""

    def finish(self, step: int) -> None:
        """A local step; a round begins every ``every / fragments`` steps and is applied ``overlap`` steps later."""
        view = self.view
        square = math.fsum(view.squares().values())
        if not view.links:
            view.offered(square)
        view.agree(step, square)
        if self._in_flight and step >= self._apply_at:
            self._apply_round()
        self._local_step(step, view.commit.norm)
        if self._free:
            self._flush(self.fragments)
            return
        due = step % self._interval == 0
        last = step == view.last_step
        if due:
            self._begin_round(step + self._overlap)
            if last or not self._overlap:
                self._apply_round()
        if last:
            self._close(due)

    def _close(self, due: int = 0) -> None:
        """The run ends: bring all of the sum S into g. ``due``: rounds of this step that have carried a fragment
        already.

        An error feedback of its own is left out. A member that begins every round at g learns again what was not sent,
        and the feedback keeps it each time: all of it at once would take g far beyond where the members were.
        """
        view = self.view
        if self._in_flight:
            self._apply_round()
        for section in view.state.sections.values():
            if section.feedback is not None:
                section.feedback.zero_()
        updates, plan = view.job.updates, view.plan
        codecs = {plan.update_codec(stage) or updates.codec for stage in range(len(plan.stages))}
        if not updates.agreed or view.is_alone or codecs == {"none"}:
            self._flush(self.fragments - due)
            return
        self._flush(self.fragments * (MASKED_CLOSING if updates.secure else CLOSING_TIMES))

    def _flush(self, rounds: int) -> None:
        """Bring what is left in x - g into g by ``rounds`` rounds, and wait for each.

        They are plain averages: an outer step stands for ``every`` local steps, and here its momentum would only move g
        further.
        """
        for _ in range(rounds):
            self._begin_round(self.view.step)
            self._apply_round()

    def _begin_round(self, apply_at: int) -> None:
        """Begin a round of x - g; it is applied in step ``apply_at``, before the optimiser."""
        if self._in_flight:
            self._apply_round()
        self.view.encode_ahead()
        for link in self.view.links.values():
            link.rounds.last = self.view.step >= self.view.last_step
            link.begin()
        if self.view.links:
            self.view.offered(own_norm(self.view.links))
        self._in_flight, self._begun, self._apply_at = True, self.view.step, apply_at

    def _local_step(self, step: int, norm: float) -> None:
        """The pipeline's step was committed: take the optimiser step on x, unless the norm is not finite."""
        view = self.view
        if math.isfinite(norm):
            view.state.optimizer_steps += 1
            for exchange in view.exchanges.values():
                exchange.x_moves()
            view.optimise(view.state.optimizer_steps, step, norm)
        elif view.context.name == view.commit.committer and not view.overflows:
            why = f"step {step} of pipeline {view.pipeline} had a gradient that is not finite: dropped"
            view.context.warn(view.context.name, why)
        view.rescale(norm)
        view.stepped(step)

    def _apply_round(self) -> None:
        """Wait for the round in flight and move g and x by it."""
        view, links = self.view, self.view.links
        view.wait_for_results()
        absent = {view.plan.pipeline_of(one) for link in links.values() for one in link.absent}
        if view.judge is not None:
            for link in links.values():
                link.judge(view.judge)
        self._apply(links)
        alone = {name: one.round + 1 for name, one in view.state.sections.items() if name not in links}
        if view.spread is not None:
            view.spread.apply_alone(alone)
        for name, number in alone.items():
            if view.spread is None:
                view.exchanges[name].apply_alone(number)
            view.state.sections[name].round = number
        self._in_flight = False
        self._unsettled -= 1
        before = self._counted_at[0]  # fragments take turns
        self._counted_at.append([old if d in absent else self._begun for d, old in enumerate(before)])

    def _apply(self, links: Mapping[str, RoundLink]) -> None:
        """Move g and x by the complete rounds of these sections, and close them."""
        results = {name: link.results for name, link in links.items()}
        self.view.apply(links, lambda link: link.exchange.apply_delta(link.updates(), link.results))
        self.view.finish(results)

    def finish_committed(self) -> None:
        view = self.view
        if view.ready_step == view.commit.step == view.step + 1:
            self._local_step(view.commit.step, view.commit.norm)

    def catch_up(self, step: int, norm: float, targets: dict[str, int]) -> bool:
        """Ask for the results that sections lack; apply those that have come."""
        behind = self._behind(targets)
        for name in behind:
            link = self.view.links[name]
            if link.rounds.open is None:
                link.begin()
            if (name, link.rounds.applied) not in self._chased:
                self._chased.add((name, link.rounds.applied))
                link.is_applied_elsewhere()
                link.ask()
            link.tick()
            if link.complete:
                self._apply({name: link})
        return not behind

    def settle(self) -> None:
        """The run's last rounds were interrupted: repeat them."""
        self._close()

    def _behind(self, targets: dict[str, int]) -> Iterable[str]:
        """Sections in which some member has applied a round that this node has not."""
        late = []
        for name, section in self.view.state.sections.items():
            if section.round < targets.get(name, 0):
                if name in self.view.links:
                    late.append(name)
                else:
                    section.round = targets[name]  # alone in the section: no results to ask for
        return late

    def end(self) -> None:
        """Drop open rounds; as a publisher, add the server errors to x."""
        for link in self.view.links.values():
            link.rounds.open = None
            link.exchange.fold_errors()
        self._in_flight = False
