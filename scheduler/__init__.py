"""Who trains which layers with whom: networks, cost, search, plans, schedules."""

from .errors import PlanError
from .explaining.predict import Prediction, predict
from .networks.devices import Device
from .networks.network import Link, Network
from .planning.planner import plan
from .planning.volunteers import Volunteers, plan_volunteers
from .plans import Plan
from .workloads.schedules import SCHEDULES, Action, Order, actions, in_flight
from .workloads.workload import CodecChoice, Layer, Workload

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
