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
"""``fetch_s(name, plan)``: seconds that a node takes to fetch the state of its place."""


@dataclass(frozen=True)
class Known:
    """Measurements, as functions of a node or a plan; 0: not known.

    ``round_trip_s``: a node's longest round trip, seconds; ``rate_bps``: the rate of a node's fetches, bit/s;
    ``step_s``: seconds of a plan's step by its nodes' speeds; ``slowest_bps``: bit/s of a node's slowest link.
    """

    round_trip_s: Callable[[str], float] = lambda name: 0.0
    rate_bps: Callable[[str], float] = lambda name: 0.0
    step_s: Callable[[Plan], float] = lambda plan: 0.0
    slowest_bps: Callable[[str], float] = lambda name: 0.0


WAITING, FLUSHING, PREPARING, TRAINING, DONE = "waiting", "flushing", "preparing", "training", "done"


@dataclass(frozen=True)
class Node:
    """A node that is in the run. ``measured``: its links are measured, or the time for that has passed."""

    name: str
    session: str
    address: str
    heard: float
    dials_out: bool = False
    attending: bool = False
    _: KW_ONLY
    arrived: bool = False
    """Whether its control stream is open: it has sent Hello."""
    ready: bool = False
    """Whether its trainer is up. Training nodes do not wait for a trainer that still loads its libraries."""
    doubted: bool = False
    """Whether it was silent and is being dialled, without an answer yet."""
    asked: float | None = None
    """When it was asked to measure its links, on this stream."""
    measured: bool = False
    passed_over: bool = False
    """Whether the planner was asked and gave it no place: a spare outside the view, until the next change."""
    away: str = ""
    """Why its owner has paused it."""
    parting: str = ""
    """Why it is about to leave."""
    told_to_leave: float | None = None
    """When it was asked for its last contribution."""
    returns: bool = False
    """Whether it had no place in the view and may have one again."""
    behind: bool = False
    """Whether a plan has a place for it and it first has to catch up as a spare."""
    cannot_follow: bool = False
    """Whether catching up has failed: the others will wait for it when it gets a place."""
    too_slow: str = ""
    """Why it stays a spare: it can't fetch its state while the others train, and it would take too long while they
    wait."""
    moved: int = 0
    """The mark of its last heartbeat, and the time at which the mark last changed."""
    moved_at: float = 0.0
    acted: float = math.inf
    """The time of its trainer's last action, by its heartbeats."""
    has_stepped: bool = False
    """Whether it has finished a step in this run, so that nothing is left to compile."""
    questioned: float | None = None
    """When it was asked whether its trainer is alive."""
    stuck: str = ""
    """Why it is a spare: its trainer does nothing."""
    caught_up: float | None = None
    """When it caught up, as a spare of the view that trains."""

    @property
    def member(self) -> s.Member:
        """The data that its peers need."""
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
    """Tracks whether anything moves at the awaited nodes."""
    needs_all: bool = False
    """Whether the others wait for the late nodes, because they can't train without them."""
    looked_at: bool = False
    """Whether the coordinator reads the view's checkpoint again, because a node can't read it (unreadable.py)."""
    sound: float | None = None
    """When it had read it and found nothing wrong."""


@dataclass(frozen=True)
class Asking:
    """An event that cannot be decided before this question is answered. ``cause``: its name (transitions.py)."""

    number: int
    question: Question
    event: s.Input
    cause: str


@dataclass(frozen=True)
class State:
    """The whole state of membership. ``why``: the sentence of its last change."""

    rules: Rules
    phase: str = WAITING
    number: int = 0
    nodes: Mapping[str, Node] = field(default_factory=dict)
    view: s.Announcement | None = None
    """The view that trains, or trained last."""
    pinned: s.Announcement | None = None
    """The view announced after ``view`` that has not started."""
    _: KW_ONLY
    eligible: frozenset[tuple[str, str]] = frozenset()
    change: Change | None = None
    begun: bool = False
    """Whether a view has started: from then on the run continues with the nodes that are there."""
    restored: bool = False
    """Whether ``view`` was restored from the database after a restart."""
    last_join: float = 0.0
    row_since: float = 0.0
    """When the present series of joins began, in which each join follows shortly after the one before."""
    comings: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Recent times at which each node joined, or paused by itself."""
    newest: Position = field(default_factory=Position)
    unsent: Unsent | None = None
    """The residuals of pipelines when the newest checkpoint was made."""
    kept: Kept = field(default_factory=dict)
    """What nodes say that they keep beside checkpoints."""
    reported: Mapping[str, int] = field(default_factory=dict)
    finished: Mapping[str, s.Finished] = field(default_factory=dict)
    unplannable: frozenset[str] = frozenset()
    broken: frozenset[tuple[str, str]] = frozenset()
    complaints: tuple[tuple[float, str, str], ...] = ()
    accused: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Node that is dialled because its connection broke -> the node that reported it -> why."""
    down: Mapping[tuple[str, str], tuple[float, str]] = field(default_factory=dict)
    """(reporting node, peer) -> since when a needed connection between two live nodes is down, and why."""
    diverged: tuple[str, str] | None = None
    """Two nodes of the view that trains whose histories differ, until a view change judges them."""
    judged: float | None = None
    """When the last view change for that reason began."""
    stored: int = 0
    """Bytes of checkpoints that have arrived since the start."""
    lacking: tuple[str, ...] = ()
    """After all have finished: the nodes whose file of the last checkpoint has not arrived."""
    ended: Watch | None = None
    unstored: Unstored | None = None
    """Why the last checkpoint could not be stored, while the run waits for it."""
    disagreements: int = 0
    ties_at_end: int = 0
    """How often nodes that had trained the last step held different weights."""
    unreadable: Mapping[str, s.Unreadable] = field(default_factory=dict)
    """The nodes that can't read the newest checkpoint, until a view has begun with it."""
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
    """Whether a checkpoint has to be made as soon as possible."""
    wanted: Plan | None = None
    """The plan of all nodes in the run, including those that still have to catch up."""
    tuned: Plan | None = None
    """The plan of the next view, with what the trials of the present one have shown, if its nodes are still there."""
    started: float = 0.0
    """When the present view began to train."""
    slowest_s: float = 0.0
    """Seconds of the slowest recent step; before the first step, of a step before the restart or by the plan."""
    stepped: Mapping[str, float] = field(default_factory=dict)
    """When each node of the view reported its last step."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Each node's slowest recent step in the present view, in seconds."""
    bases: Mapping[int, int] = field(default_factory=dict)
    """Layer -> hash of its frozen weights, as in the views that trained."""
    waits: Mapping[str, Claim] = field(default_factory=dict)
    """Node -> its last report of the nodes for which it has waited long."""
    standstill: Standstill | None = None
    moved_on: float = 0.0
    """Waiting is counted from this time: until then the coordinator itself had stopped, or a standstill was handled."""
    suspected: Mapping[str, int] = field(default_factory=dict)
    """Node -> standstills in which it, or one of a few others, was at fault."""
    held_up_by: Mapping[str, Aside] = field(default_factory=dict)
    """Nodes that held the others up, and until when they get no place."""
    why: str = "waiting for nodes"
    asking: Asking | None = None
    """The event that waits for a plan; nothing else is decided before it."""
    asked: int = 0
    """Number of plans asked for so far."""
    answers: tuple[tuple[Question, Answer], ...] = ()
    """The answers to the questions of the event that is being decided; they are dropped afterwards, because the same
    question may then have another answer."""
    events: int = field(default=0, compare=False)
    """Number of events in this coordinator's life; and the last transitions, in words."""
    recent: tuple[str, ...] = field(default=(), compare=False)


Result = tuple[State, list[s.Effect]]
