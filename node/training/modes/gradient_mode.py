"""Gradient mode: every step the group averages gradients, and every node takes the same optimiser step."""

from __future__ import annotations

import math

from ...rounds.protocol.messages import Result
from ...rounds.round_link import RoundLink
from ..member.view_member import ViewMember
from .mode import own_norm


class GradientMode:
    """Every step the group averages gradients, and every node takes the same optimiser step: x is g."""

    def __init__(self, view: ViewMember) -> None:
        self.view = view
        self._results: dict[str, tuple[Result, ...]] = {}

    @property
    def reached(self) -> int:
        return self.view.step

    @property
    def is_settled(self) -> bool:
        return True

    def missing(self, step: int) -> list[list[int]]:
        return []

    def begin(self) -> None:
        """Nothing: x is g."""

    def finish(self, step: int) -> None:
        """Average the gradient, agree that all nodes have it, take the optimiser step."""
        view, links = self.view, self.view.links
        view.prepare(view.state.taken(step))
        view.encode_ahead()
        for link in links.values():
            link.begin()
        view.wait_for_results()
        carrying = {name for name, link in links.items() if link.exchange.carries}
        for name, link in links.items():
            self._results[name] = link.results
            if name not in carrying:
                with view.context.clock.coding("add up", name):
                    link.place_all()
        # Each section is counted by one of its members.
        counted = [name for name in view.state.sections if name not in links or links[name].is_first]
        # While a round carries errors, the node's own gradient is still needed for them.
        placed = [name for name in counted if name not in carrying]
        found = view.squares(placed, alone=[name for name in placed if name not in links]) if placed else {}
        square = 0.0
        for name in counted:
            square += self._norm_of(links[name]) if name in carrying else found[name]
        view.offered(own_norm(links) if links else square)
        view.agree(step, square)
        self._apply(step, view.commit.norm)

    def _norm_of(self, link: RoundLink) -> float:
        with self.view.context.clock.coding("add up"):
            return link.square()

    def _apply(self, step: int, norm: float) -> None:
        view = self.view
        finite = math.isfinite(norm)
        if finite:
            carrying = {name: link for name, link in view.links.items() if link.exchange.carries}
            view.apply(carrying, lambda link: link.exchange.commit_gradient(link.updates()))
            for name, link in view.links.items():
                if name not in carrying:
                    link.exchange.commit_gradient()
            view.optimise(view.state.taken(step), step, norm)
        elif view.context.name == view.commit.committer and not view.overflows:
            why = f"step {step} had a gradient that is not finite, or was refused: no node applied it"
            view.context.warn("", why)
        view.rescale(norm)
        for name, section in view.state.sections.items():
            if name not in view.links:
                section.round += 1
        view.finish({name: self._results[name] for name in view.links})
        view.log.committed(norm)
        view.stepped(step)

    def finish_committed(self) -> None:
        view = self.view
        if view.ready_step == view.commit.step == view.step + 1:
            self._apply(view.commit.step, view.commit.norm)

    def catch_up(self, step: int, norm: float, targets: dict[str, int]) -> bool:
        """Another member has seen the commit of the step for which this node was ready when the view ended: take it."""
        view = self.view
        if step == view.step + 1 == view.ready_step:
            view.commit.committed(step, norm)
            self._apply(step, norm)
        return step == view.step

    def settle(self) -> None:
        """Nothing to finish: a step is complete or did not happen."""

    def end(self) -> None:
        """Drop an open step; as a publisher, add the server errors to the error feedback."""
        for link in self.view.links.values():
            link.rounds.open = None
            link.exchange.fold_errors()
