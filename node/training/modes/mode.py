"""How a step ends: with one common optimiser step (``gradient``), or with a local step and rounds (``delta``).

Both have a commit point (node/training/member/commit.py). State that must change atomically changes only after it, and
without waiting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from ...rounds.round_link import RoundLink


class Mode(Protocol):
    """What happens with the gradients of a step, and with open work when the view ends."""

    @property
    def reached(self) -> int:
        """The last step in this view whose effect on this node's pipeline is in g."""

    @property
    def is_settled(self) -> bool:
        """Whether g has all that was trained before this view, so that ``missing`` is complete."""

    def missing(self, step: int) -> list[list[int]]:
        """For each pipeline, the positions of the stream that it took in this view up to ``step`` and whose effect is
        not wholly in g."""

    def begin(self) -> None:
        """The view starts, before its first step. Raises ViewEnds while it waits for others."""

    def finish(self, step: int) -> None:
        """The gradients of the step are complete on this node. Raises ViewEnds while it waits for others."""

    def finish_committed(self) -> None:
        """The view ends after the present step's commit point: finish that step."""

    def catch_up(self, step: int, norm: float, targets: dict[str, int]) -> bool:
        """After the view: take one more step or round that some member has finished. False: something is missing."""

    def settle(self) -> None:
        """The view begins after the run's last step: finish what the end of the view before interrupted."""

    def end(self) -> None:
        """The view is over for this node."""


def own_norm(links: Mapping[str, RoundLink]) -> float:
    """The norm of this node's contributions, before encoding, in the open rounds of all its sections."""
    return math.hypot(*(link.exchange.own_norm for link in links.values()))
