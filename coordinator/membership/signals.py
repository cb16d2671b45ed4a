"""What happens to a run's membership (inputs), and what is to be done about it (effects): plain frozen values.

Inputs of a node carry its session, so that a fenced life of it is never mistaken for the present one. Every
effect carries ``why``, a sentence: it is the log line, the status line and the test's assertion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ...job.sampling import Position
from ...scheduler.plans import Plan
from .learnt import Unsent
from .questions import Answer, Question

# ---- inputs --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Joined:
    """A node passed the join checks. A new session of a known name fences the old one."""

    name: str
    session: str
    address: str
    dials_out: bool = False


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
class Section:
    """Where a section stands: last round applied, and the chain hash after it (of a view: 0 for not judged)."""

    name: str
    round: int
    chain: int


@dataclass(frozen=True)
class Flushed:
    """The answer to a flush: see control.proto. ``layers`` are held as of ``step`` (or ``ready_step``)."""

    name: str
    session: str
    view: int
    step: int = 0
    ready_step: int = 0
    norm: float = 0.0
    sections: tuple[Section, ...] = ()
    layers: frozenset[int] = frozenset()
    save: bool = False
    kept: frozenset[tuple[int, int]] = frozenset()
    """(step, view) of the checkpoints beside which it has something on its disk."""
    unsent: Mapping[int, float] = field(default_factory=dict)
    """Of each layer the norm of what it had learnt and not sent, where that may be handed to nobody; ``moved``: the
    norm that its reference has moved."""
    moved: float = 0.0


@dataclass(frozen=True)
class Fingerprint:
    """A section's content after a round, as a hash."""

    section: str
    round: int
    content: int


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
class Hold:
    """A person wants the node to have no place: ``leaves`` (drained), or stays as a spare (paused). Until Release."""

    name: str
    why: str
    leaves: bool = False


@dataclass(frozen=True)
class Release:
    """The end of a Hold."""

    name: str
    why: str


@dataclass(frozen=True)
class Evict:
    """A person puts the node out, at once."""

    name: str
    why: str


@dataclass(frozen=True)
class Readmit:
    """A person lets a node that was put out begin anew: nobody is planned apart from it any more."""

    name: str
    why: str


@dataclass(frozen=True)
class Pause:
    """A person stops all training after the step in work."""

    why: str


@dataclass(frozen=True)
class GoOn:
    """The end of a Pause."""

    why: str


@dataclass(frozen=True)
class Changed:
    """From the next view on the job is this one (JSON)."""

    job: str
    why: str


@dataclass(frozen=True)
class Save:
    """A checkpoint is wanted now."""

    why: str


@dataclass(frozen=True)
class Replan:
    """What is known of the nodes has changed enough to ask the planner again."""

    why: str


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
class CheckpointComplete:
    """A checkpoint is complete; ``position`` is where the stream stands after its step."""

    position: Position
    unsent: Unsent | None = None


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


@dataclass(frozen=True)
class CheckpointSound:
    """The answer to LookAt: every file is as it was when it was stored."""

    step: int


@dataclass(frozen=True)
class CheckpointLost:
    """The answer to LookAt or PutAside: the checkpoint of ``step`` is out of the way, ``position`` is that of the
    newest one which is left (step 0: none)."""

    step: int
    position: Position
    unsent: Unsent | None
    why: str


@dataclass(frozen=True)
class NotStored:
    """The disk does not take a file of a checkpoint."""

    step: int
    why: str


@dataclass(frozen=True)
class Planned:
    """The answer to an Ask of this number."""

    number: int
    answer: Answer


@dataclass(frozen=True)
class Undecidable:
    """What waits for the plan of this number could not be decided with it: an error of farflung. It never happened."""

    number: int


@dataclass(frozen=True)
class Over:
    """The coordinator ends the run, or its own part in it."""

    why: str


@dataclass(frozen=True)
class Tick:
    """Time has passed. ``stored``: bytes of checkpoints that have arrived since the coordinator's start."""

    stored: int = 0


Input = (
    Joined
    | Hello
    | Heard
    | Beats
    | Measured
    | Flushed
    | Prepared
    | CaughtUp
    | Kept
    | StepFinished
    | Steps
    | Finished
    | Accused
    | Apart
    | Dialled
    | StreamEnded
    | Left
    | Leaving
    | Back
    | Hold
    | Release
    | Evict
    | Readmit
    | Pause
    | GoOn
    | Changed
    | Save
    | Replan
    | CheckpointComplete
    | Unreadable
    | Waits
    | CheckpointSound
    | CheckpointLost
    | NotStored
    | Planned
    | Undecidable
    | Over
    | Tick
)

# ---- effects -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Member:
    """A node as its peers need to know it. ``dials_out``: it dials its peers, and nobody can dial it."""

    name: str
    session: str
    address: str
    dials_out: bool = False


@dataclass(frozen=True)
class Shadow:
    """A spare that follows the place of ``like``; ``fetch``: it has nothing of it yet. See control.proto."""

    node: str
    like: str
    fetch: bool


@dataclass(frozen=True)
class Handover:
    """What ``giver`` had learnt of layers that leave it, and not sent, goes to ``taker``. See control.proto."""

    giver: str
    taker: str
    layers: tuple[int, ...]
    ends: bool = False


@dataclass(frozen=True)
class Announcement:
    """A view, as it is announced. ``holders[layer]``: names; ``checkpoint`` >= 0: load that step's instead.

    ``job``: JSON, empty for the one that nodes got when they joined. ``save``: a checkpoint is wanted at its beginning.
    """

    number: int
    plan: Plan
    members: tuple[Member, ...]
    position: Position
    sections: tuple[Section, ...] = ()
    holders: tuple[tuple[str, ...], ...] = ()
    checkpoint: int = -1
    norm: float = 0.0
    why: str = ""
    job: str = ""
    save: bool = False
    shadows: tuple[Shadow, ...] = ()
    restores: tuple[str, ...] = ()
    """Who contributes again what it kept beside ``checkpoint``, which was made in view ``kept_in``."""
    kept_in: int = 0
    handovers: tuple[Handover, ...] = ()

    @cached_property
    def sessions(self) -> Mapping[str, str]:
        """Name -> session of the members."""
        return {member.name: member.session for member in self.members}

    def session_of(self, name: str) -> str | None:
        """The session with which a name is in this view."""
        return self.sessions.get(name)


@dataclass(frozen=True)
class Caused:
    """An effect. ``cause``: the event that it follows from (transitions.py)."""

    cause: str = field(default="", kw_only=True, compare=False)


@dataclass(frozen=True)
class Ask(Caused):
    """Have a plan worked out, and report Planned with this number."""

    number: int
    question: Question
    why: str


@dataclass(frozen=True)
class SendMeasure(Caused):
    """Tell a node to measure its links to these."""

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
class SendStart(Caused):
    """The view trains."""

    to: tuple[str, ...]
    view: int
    why: str


@dataclass(frozen=True)
class SendStop(Caused):
    """End a node's part in the run. ``refused``: it may not come back. ``again``: it does so by itself."""

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
    """Ask a node for its last contribution; it answers Leaving. ``stays``: as there."""

    to: tuple[str, ...]
    why: str
    stays: bool = False


@dataclass(frozen=True)
class Fence(Caused):
    """This session is over; whatever it says from now on is ignored."""

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
    """Read a checkpoint again, and put it aside if it is not as it was stored; answered by CheckpointSound or
    CheckpointLost."""

    step: int
    why: str


@dataclass(frozen=True)
class PutAside(Caused):
    """Take a checkpoint out of the way of the others, where a person may look at it; answered by CheckpointLost."""

    step: int
    why: str


@dataclass(frozen=True)
class Say(Caused):
    """Something that people should know: ``kind`` joined, left, warning or waiting."""

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
