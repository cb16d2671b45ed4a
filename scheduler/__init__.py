"""Who trains which layers with whom: networks, cost, search, plans, schedules."""

from .devices import Device
from .errors import PlanError
from .network import Link, Network
from .planner import plan
from .plans import Plan
from .predict import Prediction, predict
from .schedules import SCHEDULES, Action, Order, actions, in_flight
from .volunteers import Volunteers, plan_volunteers
from .workload import CodecChoice, Layer, Workload

__all__ = [
    "SCHEDULES",
    "Action",
    "CodecChoice",
    "Device",
    "Layer",
    "Link",
    "Network",
    "Order",
    "Plan",
    "PlanError",
    "Prediction",
    "Volunteers",
    "Workload",
    "actions",
    "in_flight",
    "plan",
    "plan_volunteers",
    "predict",
]
