"""The state of the membership machine (machine.py): frozen values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field

from ...job.data.sampling import Position
from ...proto.connections.patience import Watch
from ...scheduler.plans import Plan
from . import signals as s
from .faults.standstill import Aside, Claim, Standstill
from .questions import Answer, Question
from .questions import Planner as Planner
from .resuming.last_checkpoint import Unstored
from .resuming.learnt import Kept, Unsent
from .rules import Rules

Patience = Callable[[str, Plan], float]
"""``fetch_s(name, plan)``: seconds that a node takes to fetch what it is to hold."""


@dataclass(frozen=True)
class Known:
    """What was measured, as functions of a node or a plan; 0: it is not known.

    ``round_trip_s``: the longest of a node's round trips; ``rate_bps``: at which it takes in what it fetches;
    ``step_s``: a step of a plan, by the speeds of its nodes; ``slowest_bps``: of a node's slowest link.
    """

    round_trip_s: Callable[[str], float] = lambda name: 0.0
    rate_bps: Callable[[str], float] = lambda name: 0.0
    step_s: Callable[[Plan], float] = lambda plan: 0.0
    slowest_bps: Callable[[str], float] = lambda name: 0.0


WAITING, FLUSHING, PREPARING, TRAINING, DONE = "waiting", "flushing", "preparing", "training", "done"


@dataclass(frozen=True)
class Node:
    """A node that is in the run. ``measured``: its links are known, or were waited for long enough."""

    name: str
    session: str
    address: str
    heard: float
    dials_out: bool = False
    attending: bool = False
    _: KW_ONLY
    arrived: bool = False
    """It has said hello."""
    ready: bool = False
    """Its trainer is up. Nodes that train do not wait for one that still loads its libraries."""
    doubted: bool = False
    """It was silent, and has been dialled; no answer yet."""
    asked: float | None = None
    """When it was asked to measure its links, on this stream."""
    measured: bool = False
    passed_over: bool = False
    """The plan, asked, does not want it: a spare outside the view, until the next change."""
    away: str = ""
    """Why its owner has paused it."""
    parting: str = ""
    """Why it is about to leave."""
    told_to_leave: float | None = None
    """When it was asked for its last contribution."""
    returns: bool = False
    """It had no place in the view and may have one again."""
    behind: bool = False
    """A plan wants it, and it is to catch up as a spare first."""
    cannot_follow: bool = False
    """It tried: the others wait for it when it gets a place."""
    too_slow: str = ""
    """Why it is a spare: what it lacks it cannot fetch while the others train, and takes too long while they wait."""
    moved: int = 0
    """The mark of its last heartbeat, and when that changed."""
    moved_at: float = 0.0
    acted: float = math.inf
    """When its trainer did something last, by its heartbeats."""
    has_stepped: bool = False
    """It has finished a step in this run: what it compiles is compiled."""
    questioned: float | None = None
    """When it was asked whether its trainer is alive."""
    stuck: str = ""
    """Why it is a spare: its trainer does nothing."""
    caught_up: float | None = None
    """When it had caught up, as a spare of the view that trains."""

    @property
    def member(self) -> s.Member:
        """As its peers need to know it."""
        return s.Member(self.name, self.session, self.address, self.dials_out)


@dataclass(frozen=True)
class Change:
    """The view change under way."""

    number: int
    why: str
    began: float
    flushed: Mapping[str, s.Flushed] = field(default_factory=dict)
    prepared: Mapping[str, s.Prepared] = field(default_factory=dict)
    awaited: frozenset[str] = frozenset()
    _: KW_ONLY
    said: float = 0.0
    """When the flush was sent last to those who have not answered."""
    watch: Watch = field(default_factory=lambda: Watch("a view change", 0.0, math.inf))
    """Watches whether anything moves at the nodes that are awaited."""
    needs_all: bool = False
    """The others cannot train without the late nodes, so they wait for them."""
    looked_at: bool = False
    """The coordinator reads the view's checkpoint again, because a node cannot (unreadable.py)."""
    sound: float | None = None
    """When that was done, and nothing was found wrong."""


@dataclass(frozen=True)
class Asking:
    """An event that cannot be decided before this question is answered. ``cause``: its name (transitions.py)."""

    number: int
    question: Question
    event: s.Input
    cause: str


@dataclass(frozen=True)
class State:
    """Everything that membership depends on. ``why`` is the sentence of its last change."""

    rules: Rules
    phase: str = WAITING
    number: int = 0
    nodes: Mapping[str, Node] = field(default_factory=dict)
    view: s.Announcement | None = None
    """The view that trains, or trained last."""
    pinned: s.Announcement | None = None
    """Announced after ``view``, and never started."""
    _: KW_ONLY
    eligible: frozenset[tuple[str, str]] = frozenset()
    change: Change | None = None
    begun: bool = False
    """A view has started: from now on the run goes on with the nodes that are there."""
    restored: bool = False
    """``view`` comes from the database of a coordinator that ended."""
    last_join: float = 0.0
    row_since: float = 0.0
    """When the present row of joins began, each a moment after the one before."""
    comings: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Recent times at which each node joined, or paused by itself."""
    newest: Position = field(default_factory=Position)
    unsent: Unsent | None = None
    """What pipelines had learnt and not yet sent when the newest checkpoint was made."""
    kept: Kept = field(default_factory=dict)
    """What nodes say that they keep beside checkpoints."""
    reported: Mapping[str, int] = field(default_factory=dict)
    finished: Mapping[str, s.Finished] = field(default_factory=dict)
    unplannable: frozenset[str] = frozenset()
    broken: frozenset[tuple[str, str]] = frozenset()
    complaints: tuple[tuple[float, str, str], ...] = ()
    accused: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Nodes that are dialled because others say that their connection broke, and why, by who says so."""
    down: Mapping[tuple[str, str], tuple[float, str]] = field(default_factory=dict)
    """(who says so, peer): since when a needed connection between two that answer is down, and why."""
    diverged: tuple[str, str] | None = None
    """Two nodes of the view that trains whose histories differ, until a view change judges them."""
    judged: float | None = None
    """When the last view change for that reason began."""
    stored: int = 0
    """Bytes of checkpoints that have arrived since the start."""
    lacking: tuple[str, ...] = ()
    """Once all have finished: nodes whose part of the last checkpoint has not arrived."""
    ended: Watch | None = None
    unstored: Unstored | None = None
    """Why the last checkpoint could not be stored, while the run waits for it."""
    disagreements: int = 0
    ties_at_end: int = 0
    """How often nodes that had trained the last step held different weights."""
    unreadable: Mapping[str, s.Unreadable] = field(default_factory=dict)
    """Who cannot read the newest checkpoint, until a view has begun with it."""
    aside: int | None = None
    """The step of a checkpoint that is being set aside: no view begins before it is known which one remains."""
    ticked: float | None = None
    held: Mapping[str, s.Hold] = field(default_factory=dict)
    """Nodes that a person paused or drained, whether they are connected or not."""
    paused: str = ""
    """Why the run is paused."""
    job: str = ""
    """The job as it was last changed."""
    saving: bool = False
    """A checkpoint is wanted as soon as there can be one."""
    wanted: Plan | None = None
    """The plan of all nodes that are in, with those that still have to catch up."""
    started: float = 0.0
    """When the present view began to train."""
    slowest_s: float = 0.0
    """Seconds of the slowest of the recent steps; before the first, of a step of the last run or of the plan."""
    stepped: Mapping[str, float] = field(default_factory=dict)
    """When each node of the view reported its last step."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Each node's slowest recent step in the present view, in seconds."""
    bases: Mapping[int, int] = field(default_factory=dict)
    """Layer -> hash of its frozen weights, as in the views that trained."""
    waits: Mapping[str, Claim] = field(default_factory=dict)
    """Node -> for whom it last said that it has waited long."""
    standstill: Standstill | None = None
    moved_on: float = 0.0
    """Waiting counts from here: the coordinator itself stood still until then, or a standstill was dealt with."""
    suspected: Mapping[str, int] = field(default_factory=dict)
    """Node -> standstills in which it, or one of a few others, was at fault."""
    held_up_by: Mapping[str, Aside] = field(default_factory=dict)
    """Nodes that held the others up, and until when they get no place."""
    why: str = "waiting for nodes"
    asking: Asking | None = None
    """What waits for a plan: nothing else is decided before it."""
    asked: int = 0
    """Plans that were ever asked for."""
    answers: tuple[tuple[Question, Answer], ...] = ()
    """To what the event asked that is being decided; afterwards the same question may have another answer."""
    events: int = field(default=0, compare=False)
    """That this coordinator's life has had; and the last transitions, in words."""
    recent: tuple[str, ...] = field(default=(), compare=False)


Result = tuple[State, list[s.Effect]]
