"""Another process of this node that keeps a section's vectors and computes with them (an island's rank)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from ..protocol.messages import Contribution, Part, Result, Sent


class Elsewhere(Protocol):
    """What an exchange asks of the process that keeps its section. What has no answer may be done later, but before
    anything else that is asked of that process."""

    def offer(self, round: int, part: Part, /) -> tuple[Contribution, float]:
        """As `Exchange.offer`; also the norm of what was encoded."""

    def place(self, round: int, found: Mapping[int, Result], contributions: Sent, /) -> None:
        """As `Exchange.put`."""

    def square(self, round: int, found: Mapping[int, Result], contributions: Sent, /) -> float:
        """As `Exchange.square`."""

    def x_moves(self, offered: Iterable[int], /) -> None:
        """As `Applier.x_moves`, at the latest before the weights change."""
