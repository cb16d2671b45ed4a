"""Inputs: what the coordinator itself finds out, and ticks of its clock."""

from __future__ import annotations

from dataclasses import dataclass

from ....job.data.sampling import Position
from ....scheduler.plans import Plan
from ..questions import Answer
from ..resuming.learnt import Unsent


@dataclass(frozen=True)
class Joined:
    """A node passed the join checks. A new session of a known name fences the old one."""

    name: str
    session: str
    address: str
    dials_out: bool = False


@dataclass(frozen=True)
class Apart:
    """Two nodes are not to exchange anything any more."""

    name: str
    peer: str
    why: str


@dataclass(frozen=True)
class Dialled:
    """The result of a dial-back."""

    name: str
    session: str
    reachable: bool
    why: str


@dataclass(frozen=True)
class StreamEnded:
    """The control stream of a node ended without a goodbye."""

    name: str
    session: str
    why: str


@dataclass(frozen=True)
class Left:
    """A node said goodbye, or a person removed it."""

    name: str
    session: str
    why: str


@dataclass(frozen=True)
class Replan:
    """Measurements have changed enough to ask the planner again."""

    why: str


@dataclass(frozen=True)
class Tuned:
    """What follows from the trials of a view's plan (scheduler/trials.py). ``plan``: gives every node the place that it
    has. ``anew``: a node could not compute a trial, and waits for another view."""

    view: int
    plan: Plan
    why: str
    anew: bool = False


@dataclass(frozen=True)
class CheckpointComplete:
    """A checkpoint is complete; ``position`` is where the stream stands after its step."""

    position: Position
    unsent: Unsent | None = None


@dataclass(frozen=True)
class CheckpointSound:
    """The answer to LookAt: every file is as it was when it was stored."""

    step: int


@dataclass(frozen=True)
class CheckpointLost:
    """The answer to LookAt or PutAside: the checkpoint of ``step`` was set aside; ``position``: of the newest one that
    remains (step 0: none)."""

    step: int
    position: Position
    unsent: Unsent | None
    why: str


@dataclass(frozen=True)
class NotStored:
    """The disk could not store a file of a checkpoint."""

    step: int
    why: str


@dataclass(frozen=True)
class Planned:
    """The answer to an Ask of this number."""

    number: int
    answer: Answer


@dataclass(frozen=True)
class Undecidable:
    """The event that waits for the plan of this number could not be decided with it, by an error in farflung; it is
    dropped."""

    number: int


@dataclass(frozen=True)
class Over:
    """The coordinator ends the run, or only its own part in it."""

    why: str


@dataclass(frozen=True)
class Tick:
    """Time has passed. ``stored``: bytes of checkpoints that have arrived since the coordinator's start.
    ``lacking``: after all have finished, the nodes that have not sent their file of the last checkpoint."""

    stored: int = 0
    lacking: tuple[str, ...] = ()
