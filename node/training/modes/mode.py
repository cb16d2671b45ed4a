"""How a step ends: with one optimiser step of everybody (``gradient``), or with a local step and rounds (``delta``).

Both have a commit point (node/training/member/commit.py). Nothing that must be atomic changes before it, and
after it nothing waits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from ...rounds.round_link import RoundLink


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


def own_norm(links: Mapping[str, RoundLink]) -> float:
    """The norm of what this node offers in the open rounds of all its sections."""
    return math.hypot(*(link.exchange.own_norm for link in links.values()))
