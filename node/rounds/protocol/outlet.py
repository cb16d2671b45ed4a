"""Where a section's rounds send messages and findings: to other members, and to the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ....proto import data_pb2

ENOUGH = 30
"""Points by which one member alone can have a node evicted."""

Send = Callable[[str, data_pb2.Header, Sequence[bytes] | memoryview], None]
Warn = Callable[[str, str], None]


class Refuses(Protocol):
    """``refuse(node, message, points)``: something of ``node`` was refused; see membership/faults/refusals.py."""

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
    """Points for something that blocks everybody: each of the other members reports it, and there may be only one."""
    return ENOUGH // min(3, max(1, members - 1))
