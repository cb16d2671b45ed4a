"""Where what a section's rounds have to say goes: to other members, and to the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ....proto import data_pb2

ENOUGH = 30
"""Points that evict a node, given by one member alone."""

Send = Callable[[str, data_pb2.Header, Sequence[bytes] | memoryview], None]
Warn = Callable[[str, str], None]


class Refuses(Protocol):
    """``refuse(node, message, points)``: something of ``node`` was refused; see membership/faults/refusals.py."""

    def __call__(self, node: str, why: str, points: int = 1, /) -> None: ...


@dataclass
class Outlet:
    """Of one member of a section in one view."""

    send: Send
    """To another member."""
    refuse: Refuses
    diverged: Warn
    """``diverged(node, message)``: its history is another one."""


def blocking(members: int) -> int:
    """Points of what keeps everybody from going on: each of the others sees it, and there may be only one."""
    return ENOUGH // min(3, max(1, members - 1))
