"""What every part of a node needs to know: its name, the job of the view, and how to reach others.

A context is frozen and belongs to one view; the next view gets a copy with its own values (``dataclasses.replace``).
So work that is left over from an earlier view is finished with that earlier view's job.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..job.data.facts import Facts
from ..job.schema import Job
from ..proto import control_pb2, data_pb2
from ..proto.messages import bodies
from .device.clock import StepClock
from .models.definition import ModelDefinition
from .wire.api import Payload, Wire

URGENT, ROUND, BULK = 0, 1, 2
"""Priorities of messages on a link: activations and gradients, rounds, state."""


@dataclass(frozen=True)
class NodeContext:
    """One node in one view."""

    name: str
    job: Job
    facts: Facts
    definition: ModelDefinition
    device: torch.device
    wire: Wire
    clock: StepClock
    emit: Callable[[dict[str, Any]], None]
    """Shows an event to the person at this node."""
    pump: Callable[[float], None]
    """``pump(timeout)``: handle all messages that have arrived; wait up to ``timeout`` seconds for the first. An order
    of the coordinator may be raised from it as an exception (node/training/endings.py)."""
    view: int = 0
    """The view's number; 0 before the first."""

    def send(self, to: str, header: data_pb2.Header, payload: Payload, priority: int) -> None:
        """Send to a member of the view that the wire is in; a message to a node that is no member is dropped."""
        if to not in self.wire.members:
            return
        if self.clock.spans is None:
            self.wire.send(to, header, payload, priority)
            return
        with self.clock.span(f"send {bodies.kind_name(header.kind)}", to):
            self.wire.send(to, header, payload, priority)

    def report(self, report: control_pb2.Report) -> None:
        """Tell the coordinator something."""
        self.wire.report(report)

    def tell(self, message: str) -> None:
        """Tell the person at this node something."""
        self.emit({"event": "notice", "time": time.time(), "message": message, "node": self.name})

    def warn(self, node: str, message: str) -> None:
        """Tell the run that something of ``node`` went wrong."""
        self.report(control_pb2.Report(warning=control_pb2.Warning(node=node, message=message)))

    def refuse(self, node: str, why: str, points: int = 1) -> None:
        """Tell the run that something of another node was refused; enough points, and it is evicted."""
        self.report(control_pb2.Report(warning=control_pb2.Warning(node=node, message=why, refused=points)))

    def diverged(self, node: str, why: str) -> None:
        """Report that another member's chain of a section differs: only a view change can tell who is right."""
        self.warn(node, why)
        self.report(control_pb2.Report(evidence=control_pb2.Evidence(peer=node, why=why, diverged=True)))
