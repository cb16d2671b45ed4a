"""The inputs of the machine besides its state and the events."""

from __future__ import annotations

from dataclasses import dataclass, field

from .members import Planner
from .state import Known, Patience


@dataclass(frozen=True)
class Given:
    """Functions of measurements, which do not change while one event is decided.

    ``planner``: returns a plan at once; None: plans are asked for (questions.py). ``fetch_s(name, plan)``: seconds that
    a node takes to fetch the state of its place. ``follow``: whether spares can follow a stage, which is possible only
    where rounds are agreed on. ``known``: round trips, rates and speeds.
    """

    planner: Planner | None = None
    fetch_s: Patience = lambda name, plan: 0.0
    follow: bool = True
    known: Known = field(default_factory=Known)
