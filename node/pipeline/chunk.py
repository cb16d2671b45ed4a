"""A stage on this node, and where the node stands in its pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ..models.stage import Pass, StageModel
from .activations import Incoming, Outgoing
from .spread_pass import SpreadPass

Begin = Callable[[Tensor, Tensor, Tensor | None], Pass | SpreadPass]
"""``begin(inputs, targets, places)``: the forward pass of a microbatch, on this device or on the node's island."""


@dataclass(frozen=True)
class ScheduleSlot:
    """The arguments of `Order`: this node's position in its pipeline, the number of positions, the schedule's name, and
    how many microbatches may be in flight."""

    position: int
    positions: int
    schedule: str
    in_flight: int = 0


@dataclass
class Chunk:
    """One stage on this node, with its two neighbours. A node has one, or several where the schedule is interleaved."""

    stage: int
    model: StageModel
    begin: Begin
    before: str | None
    after: str | None
    outgoing: Outgoing
    incoming: Incoming
