"""What a loss scale of a run in fp16 can be, for whoever is told one: nodes, and the coordinator in checkpoints."""

from __future__ import annotations

import math
from typing import Any

LEAST, MOST = 2.0**-14, 2.0**40
"""A scale never leaves this range; below it the loss itself is not finite, whatever the scale."""


def is_scale(value: float) -> bool:
    """Whether a number that another node sent can be a loss scale: a power of two in the range."""
    return LEAST <= value <= MOST and math.frexp(value)[0] == 0.5


def is_state(said: Any, steps: int) -> bool:
    """Whether decoded JSON is what a checkpoint after so many steps says of its loss scale: [the scale, steps since it
    changed, steps that were dropped]."""
    if not isinstance(said, list) or len(said) != 3:
        return False
    scale, *counts = said
    counted = all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one <= steps for one in counts)
    return counted and isinstance(scale, int | float) and is_scale(float(scale))
