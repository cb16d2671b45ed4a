"""Inputs: reports of nodes. Each has the node's session; those of an ended session are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field

from .values import Fingerprint, Section


@dataclass(frozen=True)
class Hello:
    """A node's control stream is open; ``view``: the one in which it still trains, 0 for none."""

    name: str
    session: str
    view: int


@dataclass(frozen=True)
class Heard:
    """A heartbeat. ``ready``: the trainer is up and would answer a flush at once. ``moved``: a mark that changes with
    progress. ``idle_s``: seconds since the trainer's last action."""

    name: str
    session: str
    ready: bool = True
    moved: int = 0
    idle_s: float = 0.0


@dataclass(frozen=True)
class Beats:
    """The heartbeats of many nodes since the last ones, at most one of each."""

    heard: tuple[Heard, ...]


@dataclass(frozen=True)
class Measured:
    """A node has measured its links."""

    name: str
    session: str


@dataclass(frozen=True)
class Flushed:
    """The answer to a flush: see control.proto. The node holds ``layers`` as of ``step`` (or ``ready_step``)."""

    name: str
    session: str
    view: int
    step: int = 0
    ready_step: int = 0
    norm: float = 0.0
    _: KW_ONLY
    sections: tuple[Section, ...] = ()
    layers: frozenset[int] = frozenset()
    save: bool = False
    kept: frozenset[tuple[int, int]] = frozenset()
    """(step, view) of the checkpoints beside which the node has a residual on its disk."""
    unsent: Mapping[int, float] = field(default_factory=dict)
    """Layer -> norm of its residual, where residuals can't be handed over; ``moved``: norm of the reference's
    change."""
    moved: float = 0.0


@dataclass(frozen=True)
class Prepared:
    """The node has everything that the view asks of it."""

    name: str
    session: str
    view: int
    fingerprints: tuple[Fingerprint, ...] = ()
    bases: Mapping[int, int] = field(default_factory=dict)
    """Layer -> hash of its frozen weights, for each layer that the node holds."""


@dataclass(frozen=True)
class CaughtUp:
    """A spare has the same state as the group of its place and follows its rounds; or, ``failed``, why it can't."""

    name: str
    session: str
    view: int
    failed: str = ""


@dataclass(frozen=True)
class StepFinished:
    """A node's report of a step, and how long it took."""

    name: str
    session: str
    view: int
    step: int
    seconds: float = 0.0


@dataclass(frozen=True)
class Steps:
    """Reports of steps of many nodes, each with the time at which it came."""

    finished: tuple[tuple[StepFinished, float], ...]


@dataclass(frozen=True)
class Finished:
    """A node has trained the last step, and the final checkpoint is complete."""

    name: str
    session: str
    view: int
    step: int
    fingerprints: tuple[Fingerprint, ...] = ()


@dataclass(frozen=True)
class Accused:
    """``name`` reports that its connection to ``peer`` broke; or, ``diverged``, that their histories differ; or,
    ``mended``, that the connection is up again and nothing was lost."""

    name: str
    session: str
    peer: str
    why: str
    diverged: bool = False
    mended: bool = False


@dataclass(frozen=True)
class Leaving:
    """A node has given its last contribution and gives up its place. ``stays``: it pauses, and remains as a spare.

    ``asked``: this answers SendLeave; else the node's owner or machine has decided it.
    """

    name: str
    session: str
    why: str
    stays: bool = False
    asked: bool = False


@dataclass(frozen=True)
class Back:
    """The pause that the node's owner wanted is over."""

    name: str
    session: str


@dataclass(frozen=True)
class Kept:
    """A node keeps its residual beside a checkpoint: the residual's norm; ``moved``: the norm of the reference's
    movement."""

    name: str
    session: str
    step: int
    view: int
    norm: float
    moved: float


@dataclass(frozen=True)
class Unreadable:
    """A node can't use a file of the checkpoint with which an announced view begins, and why. ``voice``: the ticket
    with which the node joined; nodes with one ticket count once. Empty: the node counts alone."""

    name: str
    session: str
    view: int
    file: str
    why: str
    voice: str = ""


@dataclass(frozen=True)
class Waits:
    """A node has waited for long for ``peers``, or for the coordinator where that is empty. ``moves``: bytes arrive at
    the node."""

    name: str
    session: str
    view: int
    peers: tuple[str, ...] = ()
    moves: bool = False
