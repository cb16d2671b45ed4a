"""What a run's events add up to, and each event as a sentence. Pure: no terminal, no clock of its own.

:class:`Story` folds the events of INTERFACE (``listening``, ``joined``, ``view``, ``step``, ...) into what a person
wants to see at a glance; :func:`sentence` is the plain line of one event.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...coordinator.observe.savings import Schedule, schedule_of
from .parting import parting_text
from .savings import Savings
from .units import bytes_text, count_text, seconds_text

Event = Mapping[str, Any]

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
class Story:
    """The sum of a run's events so far.

    ``speed`` is tokens per second, smoothed over about ten steps.
    """

    steps: int = 0
    step: int = 0
    loss: float | None = None
    eval_loss: float | None = None
    speed: float = 0.0
    savings: Savings = field(default_factory=Savings)
    nodes: set[str] = field(default_factory=set)
    view: int = 0
    spare: bool = False
    """Every node of this story is a spare: on a node's own screen, this node."""
    ended: bool = False
    state: str = ""
    """The run's folder or database, on the coordinator's machine."""
    phase: str = ""
    """That of the coordinator's ``phase`` events; "" at a node, which hears of none."""
    doing: str = ""
    """What is done now, in a sentence: of the newest notice or progress, until steps are made again."""
    kept: int = 0
    """The step of the newest checkpoint that was seen; what the first view began with is one too."""
    interrupted: Event | None = None
    """What the coordinator said as it was told to end."""
    pace: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_PACE_STEPS))
    """(seconds since the epoch, step) of the last steps of a view."""

    def add(self, event: Event) -> None:
        """Take one event in; unknown events change nothing."""
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
            self.savings.schedule = _schedule(event)
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
            if self.phase == "stopping":  # what comes on the way to the end is no news
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
        """Whether steps are made now, as far as is known."""
        return self.phase == "training" or (not self.phase and bool(self.step))

    @property
    def at_the_end(self) -> bool:
        """Whether all steps are made."""
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
        """How long the rest takes at the pace of the last steps; empty while none are made."""
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
        """Tokens per second; empty while no steps are made."""
        return f"{count_text(self.speed)} tokens/s" if self.speed and self.is_training and not self.at_the_end else ""

    def saved_text(self) -> str:
        """What compression saves."""
        return self.savings.text()

    def parting(self) -> str:
        """What is safe after Ctrl-C, and what is lost."""
        return parting_text(self.interrupted, self.step, self.kept)


def _schedule(view: Event) -> Schedule:
    """When a view's updates are compressed."""
    codecs = view.get("codecs")
    codec = codecs.get("updates") if isinstance(codecs, Mapping) else None
    return schedule_of({"codec": codec, "dense_rounds": view.get("dense_rounds"), "every": view.get("round_every")})


def sentence(event: Event) -> str:
    """One event as a plain line."""
    words = _SENTENCES.get(str(event.get("event")))
    return words(event) if words else ""


def amount_text(event: Event) -> str:
    """How much is done: 12.3 M tokens, 40 MB, 40 MB of 2.1 GB."""
    is_bytes = event.get("unit") == "bytes"
    parts = [float(event[key]) for key in ("done", "of") if event.get(key)] or [0.0]
    shown = " of ".join(bytes_text(part) if is_bytes else count_text(part) for part in parts)
    return shown if is_bytes else f"{shown} {event.get('unit')}"


def advice_lines(event: Event) -> list[str]:
    """A node's own view: what it does, of what use that is, and what would make it more useful."""
    lines = [f"this node {event.get('doing')}", f"of use: {event.get('use')}"]
    return [*lines, f"would help: {event['better']}"] if event.get("better") else lines


def stage_text(stage: Any) -> str:
    """[0, 2] as 'layers 0-2'."""
    first, last = stage
    return f"layer {first}" if first == last else f"layers {first}-{last}"


def plan_lines(event: Event) -> list[str]:
    """The plan of a view: one line a pipeline, then the spares and the codecs."""
    stages = event.get("stages") or []
    lines = []
    for number, pipeline in enumerate(event.get("pipelines") or []):
        names = pipeline if isinstance(pipeline, list) else list(pipeline)
        held = [f"{name} ({stage_text(stages[at])})" if at < len(stages) else name for at, name in enumerate(names)]
        lines.append(f"pipeline {number}: " + " -> ".join(held))
    return lines + plan_notes(event)


def plan_notes(event: Event) -> list[str]:
    """What a plan says beside its pipelines: spares and codecs."""
    lines = [f"spares: {', '.join(event['spares'])}"] if event.get("spares") else []
    codecs = event.get("codecs")
    if isinstance(codecs, Mapping) and len(event.get("stages") or ()) == 1:  # nothing goes from stage to stage
        codecs = {link: codec for link, codec in codecs.items() if link == "updates"}
    codecs = codecs_text(codecs)
    return [*lines, f"codecs: {codecs}"] if codecs else lines


def codecs_text(codecs: Any) -> str:
    """The codecs of a view in one line, whatever their shape: a mapping, a list or a word."""
    if not codecs:
        return ""
    if isinstance(codecs, Mapping):
        return ", ".join(f"{link} {codec}" for link, codec in codecs.items())
    return ", ".join(map(str, codecs)) if isinstance(codecs, (list, tuple)) else str(codecs)


def view_text(event: Event) -> str:
    """A view in a sentence of cause and effect; ``farflung status`` has the whole reason."""
    clauses = [one.strip() for one in str(event.get("why") or "").split(";")]
    said = [clauses[0], *(one for one in clauses[1:] if "from the checkpoint" in one)]
    pipelines, stages, spares = (event.get(key) or [] for key in ("pipelines", "stages", "spares"))
    shape = f"now {_many(len(pipelines), 'pipeline')} of {_many(len(stages), 'stage')}" if pipelines else ""
    if spares:
        shape += f", {_many(len(spares), 'spare')}"
    return "; ".join(one for one in [*said, shape] if one)


def _many(count: int, word: str) -> str:
    return f"{count} {word}{'s' if count != 1 else ''}"


def why_text(event: Event) -> str:
    """': ' and the reason, where there is one."""
    return f": {event['why']}" if event.get("why") else ""


def _came_or_went(event: Event) -> str:
    """The reason where it is a sentence about the node already, or all but its name; else 'NODE joined: reason'."""
    node, why = str(event.get("node")), str(event.get("why") or "")
    if why.startswith(f"{event.get('event')} "):
        return f"{node} {why}"
    return why if why.startswith(node) else f"{node} {event.get('event')}{why_text(event)}"


def _listening(event: Event) -> str:
    page = f"\nsee it: farflung status {event['state']}" if event.get("state") else ""
    page += f"\npage: {event['page']}" if event.get("page") else ""
    page += f"\nto look only: {event['viewer']}" if event.get("viewer") else ""
    link = str(event.get("link"))
    admits = f"\n{admits_text(int(event['uses']), float(event['expires']))}\n" if event.get("uses") else ""
    return (
        "listening. To join from another terminal or machine, where `ps` shows the link to nobody:\n\n"
        f"  {hidden_join_line(link)}\n  farflung join @FILE    (a file with the next line)\n\n"
        f"or, on a machine that is yours alone:\n\n  {join_line(link)}\n{admits}{page}"
    )


def admits_text(uses: int, expires: float) -> str:
    """How many nodes a link admits, and until when."""
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(expires))
    return f"the link admits {uses} node{'s' if uses != 1 else ''} for the first time, until {until}"


def hidden_join_line(link: str) -> str:
    """The line to paste where others are on the machine: they see the words of a command, and not its environment."""
    return f"FARFLUNG_LINK={link} farflung join"


def join_line(link: str) -> str:
    """The line to paste. A # inside a word begins no comment, so the link needs no quotes."""
    return f"farflung join {link}"


def _view(event: Event) -> str:
    return "\n".join([f"view {event.get('view')}: {view_text(event)}", *("  " + line for line in plan_lines(event))])


def _step(event: Event) -> str:
    loss = event.get("loss")
    shown = "-" if loss is None else f"{loss:.4f}"
    speed = count_text(float(event.get("tokens_per_second") or 0.0))
    return (
        f"step {event.get('step')}: loss {shown}, {speed} tokens/s, {seconds_text(float(event.get('seconds') or 0.0))}"
    )


def _done(event: Event) -> str:
    loss = event.get("eval_loss")
    ended = "" if loss is None else f", validation loss {loss:.4f} nats per token"
    views = event.get("views")
    counted = "" if not views else f", {views} view{'s' if views != 1 else ''}"
    bytes_sent = int(event.get("bytes_updates") or 0) + int(event.get("bytes_activations") or 0)
    sent = f", {bytes_text(bytes_sent)} of updates and activations" if bytes_sent else ""
    kept = f"\ncheckpoint: {event['checkpoint']}" if event.get("checkpoint") else ""
    took = seconds_text(float(event.get("seconds") or 0.0))
    return f"done: {event.get('steps')} steps in {took}{ended}{counted}{sent}{kept}"


def _eval(event: Event) -> str:
    loss = event.get("loss")
    accuracy = event.get("accuracy")
    correct = f", accuracy {accuracy:.1%}" if accuracy is not None else ""
    return f"step {event.get('step')}: validation loss {'-' if loss is None else f'{loss:.4f}'}{correct}"


def _warning(event: Event) -> str:
    node = f" ({event['node']})" if event.get("node") else ""
    return f"warning{node}: {event.get('message')}"


_SENTENCES: dict[str, Callable[[Event], str]] = {
    "listening": _listening,
    "joined": _came_or_went,
    "left": _came_or_went,
    "view": _view,
    "step": _step,
    "eval": _eval,
    "checkpoint": lambda event: f"step {event.get('step')}: checkpoint {event.get('path')}",
    "warning": _warning,
    "notice": lambda event: str(event.get("message")),
    "terms": lambda event: "\n".join(["this node", *(f"  {line}" for line in event.get("terms") or ())]),
    "progress": lambda event: f"{event.get('what')}: {amount_text(event)}",
    "advice": lambda event: "; ".join(advice_lines(event)),
    "done": _done,
    "error": lambda event: f"error: {event.get('message')}" + (f"\nhint: {event['hint']}" if event.get("hint") else ""),
}
