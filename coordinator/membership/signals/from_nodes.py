"""Inputs: what a node says. Each carries its session: of a life of the node that is over, nothing counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field

from .values import Fingerprint, Section


@dataclass(frozen=True)
class Hello:
    """Its control stream is open; ``view`` is the one that it still trains in, 0 for none."""

    name: str
    session: str
    view: int


@dataclass(frozen=True)
class Heard:
    """A heartbeat. ``ready``: the trainer is up, so that it would answer a flush at once. ``moved``: a mark.
    ``idle_s``: since the trainer's last action."""

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
    """It has measured its links."""

    name: str
    session: str


@dataclass(frozen=True)
class Flushed:
    """The answer to a flush: see control.proto. ``layers`` are held as of ``step`` (or ``ready_step``)."""

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
    """(step, view) of the checkpoints beside which it has something on its disk."""
    unsent: Mapping[int, float] = field(default_factory=dict)
    """Norm of the residual of each layer, where it cannot be handed over; ``moved``: norm of the reference's change."""
    moved: float = 0.0


@dataclass(frozen=True)
class Prepared:
    """The node has everything that the view asks of it."""

    name: str
    session: str
    view: int
    fingerprints: tuple[Fingerprint, ...] = ()
    bases: Mapping[int, int] = field(default_factory=dict)
    """Of each layer that it holds, a hash of the weights that never change."""


@dataclass(frozen=True)
class CaughtUp:
    """A spare holds what the group of its place holds, and follows it; or, ``failed``, why it cannot."""

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
    """Reports of steps of many nodes since the last ones, each with when it came."""

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
    ``mended``, that it is there again and nothing was lost."""

    name: str
    session: str
    peer: str
    why: str
    diverged: bool = False
    mended: bool = False


@dataclass(frozen=True)
class Leaving:
    """The node's last contribution is in: no view needs a place for it. ``stays``: it pauses, and remains as a spare.

    ``asked``: the answer to SendLeave; else its owner or its machine wants it so.
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
    """A node keeps what it has learnt beside a checkpoint: of this norm, where the reference has moved by ``moved``."""

    name: str
    session: str
    step: int
    view: int
    norm: float
    moved: float


@dataclass(frozen=True)
class Unreadable:
    """A node cannot use a file of the checkpoint with which an announced view begins, and why. ``voice``: the ticket by
    which it came, for several names of one count once; empty: it counts by itself."""

    name: str
    session: str
    view: int
    file: str
    why: str
    voice: str = ""


@dataclass(frozen=True)
class Waits:
    """A node has waited for these for long; for the coordinator where there are none. ``moves``: bytes arrive there."""

    name: str
    session: str
    view: int
    peers: tuple[str, ...] = ()
    moves: bool = False
