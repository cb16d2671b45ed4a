"""Effects: what the coordinator has to do. Each has ``why``, a sentence, which is logged and compared by tests."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..questions import Question
from .values import Announcement, Member


@dataclass(frozen=True)
class Caused:
    """An effect. ``cause``: the name of the event that caused it (transitions.py)."""

    cause: str = field(default="", kw_only=True, compare=False)


@dataclass(frozen=True)
class Ask(Caused):
    """Have a plan made, and report Planned with this number."""

    number: int
    question: Question
    why: str


@dataclass(frozen=True)
class SendMeasure(Caused):
    """Tell a node to measure its links to these nodes."""

    to: str
    peers: tuple[Member, ...]
    why: str


@dataclass(frozen=True)
class SendFlush(Caused):
    """Announce a view change."""

    to: tuple[str, ...]
    view: int
    why: str


@dataclass(frozen=True)
class SendView(Caused):
    """Store the view, then send it to these (its members, or the one that missed it)."""

    to: tuple[str, ...]
    view: Announcement
    why: str


@dataclass(frozen=True)
class KeepView(Caused):
    """Store the view that trains once more: what its trials have shown was added to its plan and its ``why``."""

    view: Announcement
    why: str


@dataclass(frozen=True)
class SendStart(Caused):
    """The view trains."""

    to: tuple[str, ...]
    view: int
    why: str


@dataclass(frozen=True)
class SendStop(Caused):
    """End a node's part in the run. ``refused``: it may not come back. ``again``: it will join again by itself."""

    to: tuple[str, ...]
    why: str
    failed: bool = False
    refused: bool = False
    again: bool = False


@dataclass(frozen=True)
class SendNotice(Caused):
    """A sentence for the person at the node."""

    to: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class SendLeave(Caused):
    """Ask a node for its last contribution; it answers Leaving. ``stays``: as in Leaving."""

    to: tuple[str, ...]
    why: str
    stays: bool = False


@dataclass(frozen=True)
class Fence(Caused):
    """This session is over; its further reports are ignored."""

    name: str
    session: str
    why: str


@dataclass(frozen=True)
class Dial(Caused):
    """Try to connect to a node's address, and report Dialled."""

    name: str
    session: str
    address: str
    why: str


@dataclass(frozen=True)
class LookAt(Caused):
    """Read a checkpoint again, and set it aside if its files have changed since they were stored; answered by
    CheckpointSound or CheckpointLost."""

    step: int
    why: str


@dataclass(frozen=True)
class PutAside(Caused):
    """Move a checkpoint to where it is no longer used and a person may look at it; answered by CheckpointLost."""

    step: int
    why: str


@dataclass(frozen=True)
class Say(Caused):
    """Tell people something. ``kind``: joined, left, warning or waiting."""

    kind: str
    node: str
    why: str


@dataclass(frozen=True)
class Finish(Caused):
    """The run is done."""

    step: int
    why: str


@dataclass(frozen=True)
class Fail(Caused):
    """The run cannot go on."""

    why: str
    hint: str = field(default="")


Effect = (
    Ask
    | SendMeasure
    | SendFlush
    | SendView
    | KeepView
    | SendStart
    | SendStop
    | SendNotice
    | SendLeave
    | Fence
    | Dial
    | LookAt
    | PutAside
    | Say
    | Finish
    | Fail
)
