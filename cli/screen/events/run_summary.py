"""A summary of a run's events. Pure: no terminal, no clock of its own.

:class:`RunSummary` folds events (``listening``, ``joined``, ``view``, ``step``, ...; docs/reference.md lists them) into
the numbers that a person wants to see at a glance; :func:`sentence` makes the line of one event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field

from ....coordinator.observe.savings import Schedule, schedule_of
from ..units import count_text, seconds_text
from .event import Event
from .parting import parting_text
from .savings import Savings
from .sentences import sentence

_PACE_STEPS = 20
_LAST = "last evaluation and checkpoint"
_PHASES = {
    "preparing_start": "preparing the data",
    "flushing": "a new view: finishing the step",
    "preparing": "a new view: everybody gets its part",
    "stopping": "stopping",
    "done": "done",
}


@dataclass
class RunSummary:
    """The summary of a run's events so far.

    ``speed`` is tokens per second, smoothed over about ten steps.
    """

    steps: int = 0
    step: int = 0
    loss: float | None = None
    eval_loss: float | None = None
    speed: float = 0.0
    savings: Savings = field(default_factory=Savings)
    _: KW_ONLY
    nodes: set[str] = field(default_factory=set)
    view: int = 0
    spare: bool = False
    """Whether this node is a spare; used only on a node's own screen."""
    ended: bool = False
    state: str = ""
    """The run's folder or database, on the coordinator's machine."""
    phase: str = ""
    """The phase from the coordinator's ``phase`` events; "" at a node, which gets none."""
    doing: str = ""
    """What the run does now: the newest notice or progress, until the next step."""
    kept: int = 0
    """The step of the newest checkpoint in the events, including the one with which the first view began."""
    interrupted: Event | None = None
    """The coordinator's event ``interrupted``, if it was told to end."""
    pace: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_PACE_STEPS))
    """(seconds since the epoch, step) of the latest steps in the present view."""

    def add(self, event: Event) -> None:
        """Add one event; unknown events change nothing."""
        kind = event.get("event")
        self.steps = int(event.get("steps") or self.steps)
        self._follow(event)
        if kind == "listening":
            self.state = str(event.get("state") or "")
        elif kind == "step":
            self.step = int(event["step"])
            self.loss = event.get("loss", self.loss)
            now = float(event.get("tokens_per_second") or 0.0)
            self.speed = now if not self.speed else 0.9 * self.speed + 0.1 * now
            self.savings.add(event)
        elif kind == "eval":
            self.eval_loss = event.get("loss")
        elif kind == "joined":
            self.nodes.add(str(event.get("node")))
        elif kind == "left":
            self.nodes.discard(str(event.get("node")))
        elif kind == "view":
            if not self.view and not self.step:
                self.kept = int(event.get("step") or 0)
            self.view = int(event.get("view") or 0)
            self.savings.schedule = schedule_in(event)
            self.step = int(event.get("step") or self.step)
            self.spare = bool(self.nodes) and self.nodes <= set(event.get("spares") or ())
        elif kind == "checkpoint":
            self.kept = max(self.kept, int(event.get("step") or 0))
        elif kind == "interrupted":
            self.interrupted = event
        elif kind == "done":
            self.ended = True
            self.step = int(event.get("steps") or self.step)
            self.eval_loss = event.get("eval_loss", self.eval_loss)

    def _follow(self, event: Event) -> None:
        """What the run does now."""
        kind = event.get("event")
        if kind == "phase":
            if self.phase == "stopping":  # while stopping, other events are not shown
                return
            self.phase = str(event.get("phase") or "")
            self.doing = str(event.get("why") or "") if self.phase == "waiting" else ""
            self.pace.clear()
        elif kind in ("notice", "progress"):
            self.doing = sentence(event)
        elif kind == "view":
            if self.phase != "stopping":
                self.doing = "" if self.phase else "starting"
            self.pace.clear()
        elif kind == "step":
            if self.phase in ("", "training"):
                self.doing = ""
            self.pace.append((float(event.get("time") or 0.0), int(event["step"])))

    @property
    def is_training(self) -> bool:
        """Whether the run trains now, by its events."""
        return self.phase == "training" or (not self.phase and bool(self.step))

    @property
    def at_the_end(self) -> bool:
        """Whether all steps are trained."""
        return 0 < self.steps <= self.step

    def headline(self) -> str:
        """What the run does now; on a node's own screen, what the node does."""
        if self.phase == "waiting":
            return f"waiting: {self.doing}" if self.doing else "waiting for nodes"
        if self.doing:
            return self.doing
        if self.spare:
            return "spare: steps in when it is needed"
        if self.is_training:
            return _LAST if self.at_the_end else "training" if self.step else "starting"
        return _PHASES.get(self.phase, "waiting for nodes")

    def count(self) -> str:
        """82/485; empty before the number of steps is known."""
        return f"{self.step}/{self.steps}" if self.steps else ""

    def left_text(self) -> str:
        """The time left at the pace of the last steps; empty while the run does not train."""
        if not self.is_training or self.doing or len(self.pace) < 2 or not self.steps or self.at_the_end:
            return ""
        (began, first), (now, last) = self.pace[0], self.pace[-1]
        if now <= began or last <= first:
            return ""
        return f"{seconds_text((now - began) / (last - first) * max(0, self.steps - last))} left"

    def loss_text(self) -> str:
        """The training loss."""
        return "" if self.loss is None else f"loss {self.loss:.3f}"

    def speed_text(self) -> str:
        """Tokens per second; empty while the run does not train."""
        return f"{count_text(self.speed)} tokens/s" if self.speed and self.is_training and not self.at_the_end else ""

    def saved_text(self) -> str:
        """What compression saves."""
        return self.savings.text()

    def parting(self) -> str:
        """The sentence after Ctrl-C: from which step the run resumes, and what is lost."""
        return parting_text(self.interrupted, self.step, self.kept)


def schedule_in(view: Event) -> Schedule:
    """When a view's updates are compressed."""
    codecs = view.get("codecs")
    codec = codecs.get("updates") if isinstance(codecs, Mapping) else None
    return schedule_of({"codec": codec, "dense_rounds": view.get("dense_rounds"), "every": view.get("round_every")})
