"""Another process of this node that keeps a section's vectors and computes with them (an island's rank)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ..protocol.messages import Contribution, Part, Result


class Elsewhere(Protocol):
    """What an exchange asks of the process that keeps its section."""

    def offer(self, round: int, part: Part) -> tuple[Contribution, float]:
        """As `Exchange.offer`; also the norm of what was encoded."""

    def place(self, round: int, result: Result, contributions: Mapping[tuple[int, int], Contribution]) -> None:
        """As `Exchange.put`. It may be done later, but before anything else that is asked of that process."""
