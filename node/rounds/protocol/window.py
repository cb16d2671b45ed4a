"""Gradient mode: how many parts of a round a member has in flight, and which it offers next.

A member encodes and sends a part only when its messages in flight leave room, and when the part's sum has taken the
gradient's place, the part's bytes are free. So messages take the memory of the window, whatever the stage's length.

No member waits for a part that another keeps back: the first part in an order that all share, of those whose sums a
member lacks, is offered whatever is in flight. So every member offers the first part that is not summed yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .messages import Part, RoundPlan

IN_FLIGHT = 64 << 20
"""A member offers another part while fewer bytes of its contributions are in flight: 10 Gbit/s for 50 ms."""
EACH = 2
"""So many parts of each publisher may be in flight whatever their bytes, so that all publishers have work."""


def is_windowed(plan: RoundPlan) -> bool:
    """Whether the window applies: in gradient mode, in rounds of one phase."""
    return plan.patient and plan.phases == 1


def order(parts: Iterable[Part]) -> list[Part]:
    """The parts in the order in which every member prefers to offer them: the last first, as a backward pass completes
    their gradients."""
    return sorted(parts, key=lambda part: -part.index)


def publishers_of(plan: RoundPlan) -> int:
    """How many members publish."""
    return len({part.publisher for part in plan.parts})


def has_room(sizes: Sequence[int], publishers: int) -> bool:
    """Whether another part may be offered. ``sizes``: bytes of each own contribution in flight."""
    return len(sizes) < EACH * publishers or sum(sizes) < IN_FLIGHT
