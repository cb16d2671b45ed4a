"""Who trains which layers with whom: networks, cost, search, plans, schedules."""

from .errors import PlanError
from .network import Device, Link, Network
from .planner import plan
from .plans import Plan
from .schedules import SCHEDULES, Action, actions, in_flight
from .workload import Layer, Workload

__all__ = [
    "SCHEDULES",
    "Action",
    "Device",
    "Layer",
    "Link",
    "Network",
    "Plan",
    "PlanError",
    "Workload",
    "actions",
    "in_flight",
    "plan",
]
