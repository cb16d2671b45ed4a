"""Callbacks by which a section's rounds send messages to other members and report to the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ....proto import data_pb2

ENOUGH = 30
"""Points that evict a node on one member's word."""

Send = Callable[[str, data_pb2.Header, Sequence[bytes] | memoryview], None]
Warn = Callable[[str, str], None]


class Refuses(Protocol):
    """``refuse(node, message, points)``: a message of ``node`` was refused; see membership/faults/refusals.py. No
    points: nothing shows that it is the fault of this node, and people are told."""

    def __call__(self, node: str, why: str, points: int = 1, /) -> None: ...


@dataclass
class Outlet:
    """Callbacks of one member of a section in one view."""

    send: Send
    """Sends a message to another member."""
    refuse: Refuses
    diverged: Warn
    """``diverged(node, message)``: the chain of ``node`` differs."""


def blocking(members: int) -> int:
    """Points for a fault that blocks the whole round: all other members report it, but there may be only one of
    them."""
    return ENOUGH // min(3, max(1, members - 1))
