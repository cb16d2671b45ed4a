"""Validates the reports of nodes: each kind has a row in ``CHECKS`` with a function that says why a report can't be
true.

Pure: from a report and the run's data to a sentence, empty where the report may be used. A refused report changes
nothing; a warning names its node. Checks that need the reports of several members are in ``membership/``; here each
report is checked alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from ....proto.control_pb2 import EvalDone, Report, StepDone
from ...membership.faults.judged import MOST
from ...membership.signals import Announcement

LARGEST = 2.0**50
"""The largest number in a report: sums fit into a database and are exact in a browser."""
LATE_S = 60.0
"""Seconds by which a step may seem longer than the age of its view (clocks differ, streams break)."""
LONGEST_LATENCY_S, FASTEST_BPS = 600.0, 1e14
_MOST_ENTRIES, _MOST_KEPT = 8192, 64
MOST_PEERS = 64
_MOST_SETS = 64
_LONGEST_NAME = 64
_LONGEST_NOTES = 10_000
_DEEPEST_NOTES = 100
"""Most brackets in notes: JSON that is nested too deeply would overflow the reader's stack."""
_TIMES = ("seconds", "compute_seconds", "codec_seconds", "wire_seconds", "waiting_seconds")


@dataclass(frozen=True)
class About:
    """The run's data for checking a report of ``name``. ``nodes``: all that ever joined.

    ``last``: the run's last step. ``view``: the one that trains or trained last; it began ``age`` seconds ago (None:
    not known). ``batch``: samples of a step. ``tokens``: of a sample, 0 where not known.
    """

    name: str
    nodes: Collection[str]
    last: int
    layers: int
    vocabulary: int
    view: Announcement | None
    _: KW_ONLY
    age: float | None
    batch: int
    tokens: int


ANYBODY = About("", (), 0, 0, 0, None, age=None, batch=0, tokens=0)
"""For reports whose check does not depend on the run."""


def refused(report: Report, known: About) -> str:
    """Why a report is not used, as a sentence; empty where it is."""
    kind = report.WhichOneof("kind")
    if kind is None:
        return ""
    words, check = CHECKS[kind]
    why = check(getattr(report, kind), known)
    return f"its report of {words} is refused: {why}" if why else ""


def absurd(report: StepDone | EvalDone, last: int, nodes: Collection[str]) -> str:
    """Why a report cannot be true, empty where it can: steps end with ``last``, links lead to ``nodes``.

    A loss may be anything: training does diverge.
    """
    if report.step > last:
        return f"the run ends with step {last}"
    sent = report.sent if isinstance(report, StepDone) else ()
    if len(sent) > len(nodes):
        return f"it sent to {len(sent)} peers, where {len(nodes)} nodes have ever joined"
    numbers = [value for field, value in report.ListFields() if field.name not in ("loss_sum", "notes", "sent", "sets")]
    for one in sent:
        numbers += [one.bytes, one.rate_bps, one.beside, one.arrived_beside]
    if not all(0 <= number <= LARGEST for number in numbers):
        return "its numbers are impossible"
    if isinstance(report, StepDone) and len(report.notes) > _LONGEST_NOTES:
        return f"its notes are longer than {_LONGEST_NOTES} characters"
    if isinstance(report, StepDone) and sum(map(report.notes.count, "[{")) > _DEEPEST_NOTES:
        return f"its notes have more than {_DEEPEST_NOTES} lists and tables"
    strangers = [one.peer for one in sent if one.peer not in nodes]
    if strangers:
        return f"it sent to {strangers[0][:80]!r}, which never joined"
    return "it names a peer twice" if len({one.peer for one in sent}) < len(sent) else ""


def _step(said: StepDone, known: About) -> str:
    if why := absurd(said, known.last, known.nodes):
        return why
    if known.view is None or said.view != known.view.number:
        return ""  # from an ended view, or repeated after a restart: it is not counted
    if known.name not in known.view.plan.nodes:
        return f"it has no place in view {said.view}"
    if known.age is not None and (longest := max(getattr(said, one) for one in _TIMES)) > known.age + LATE_S:
        return f"{longest:.0f} s of a step, where the view has trained for {known.age:.0f} s"
    if said.samples > known.batch:
        return f"{said.samples} samples of a batch of {known.batch}"
    if known.tokens and said.tokens > known.batch * known.tokens:
        return f"{said.tokens} tokens, where a step has {known.batch * known.tokens}"
    return ""


def _eval(said: EvalDone, known: About) -> str:
    if why := absurd(said, known.last, known.nodes):
        return why
    numbers = [number for one in said.sets for number in (one.number, one.tokens, one.correct)]
    if len(said.sets) > _MOST_SETS or not all(0 <= number <= LARGEST for number in numbers):
        return "what it says of its evaluation sets is impossible"
    if len({one.number for one in said.sets}) < len(said.sets):
        return "it names a set twice"
    wrong = said.correct > said.predictions or any(one.correct > one.tokens for one in said.sets)
    return "more is right than was predicted" if wrong else ""


def _heartbeat(said: Any, known: About) -> str:
    return "" if 0 <= said.trainer_age <= LARGEST else "its trainer's age is impossible"


def _links(said: Any, known: About) -> str:
    most = 2 * len(known.nodes)
    return f"{len(said.links)} links, where {most} at most can be its own" if len(said.links) > most else ""


def _flushed(said: Any, known: About) -> str:
    if max(said.step, said.ready_step) > known.last:
        return f"the run ends with step {known.last}"
    if said.HasField("pending") and (why := absurd(said.pending, known.last, known.nodes)):
        return why
    if len(said.kept) > _MOST_KEPT:
        return f"it keeps {len(said.kept)} checkpoints"
    if why := next((why for one in said.kept if (why := _kept(one, known))), ""):
        return why
    return _names(one.section for one in said.sections) or _layers(said.layers, known)


def _prepared(said: Any, known: About) -> str:
    return _names(one.section for one in said.fingerprints) or _layers([one.layer for one in said.bases], known)


def _finished(said: Any, known: About) -> str:
    if said.step > known.last:
        return f"the run ends with step {known.last}"
    return _names(one.section for one in said.fingerprints)


def _kept(said: Any, known: About) -> str:
    return f"the run ends with step {known.last}" if said.step > known.last else ""


def _evidence(said: Any, known: About) -> str:
    return "" if said.peer in known.nodes else f"{said.peer[:80]!r} never joined"


def _unreadable(said: Any, known: About) -> str:
    return f"the run ends with step {known.last}" if said.step > known.last else ""


def _trial_failed(said: Any, known: About) -> str:
    return f"the run ends with step {known.last}" if said.step > known.last else ""


def _waits(said: Any, known: About) -> str:
    if len(said.peers) > MOST_PEERS:
        return f"{len(said.peers)} nodes, where {MOST_PEERS} are enough"
    return "" if set(said.peers) <= set(known.nodes) else "one of them never joined"


def _clock(said: Any, known: About) -> str:
    return "" if math.isfinite(said.monotonic) else "its clock is no number"


def _written(said: Any, known: About) -> str:
    if not said.failed and said.token >= known.vocabulary:
        return f"token {said.token} of {known.vocabulary}"
    return "" if max(said.step, said.round) <= LARGEST else "its numbers are impossible"


def _scores(said: Any, known: About) -> str:
    names = [one.node for one in said.scores]
    if len(set(names)) < len(names) or not set(names) <= set(known.nodes) or known.name in names:
        return "it judges a node twice, or itself, or one that never joined"
    if said.round > LARGEST or not all(abs(one.own) <= MOST and abs(one.held) <= MOST for one in said.scores):
        return "its numbers are impossible"
    return ""


def _nothing(said: Any, known: About) -> str:
    """No check: the report has only text for people, which is cut and cleaned where it is shown, or no content."""
    return ""


def _names(found: Iterable[str]) -> str:
    """Why names of sections are impossible: each may occur once."""
    names = list(found)
    if len(names) > _MOST_ENTRIES or len(set(names)) < len(names):
        return "it names a section twice"
    return "" if all(0 < len(name) <= _LONGEST_NAME for name in names) else "it names no section"


def _layers(found: Collection[int], known: About) -> str:
    if len(found) > known.layers or len(set(found)) < len(found):
        return "it names a layer twice"
    return "" if all(layer < known.layers for layer in found) else f"the model has {known.layers} layers"


CHECKS: Mapping[str, tuple[str, Callable[[Any, About], str]]] = {
    "hello": ("itself", _nothing),
    "heartbeat": ("being alive", _heartbeat),
    "links": ("links", _links),
    "flushed": ("where it stands", _flushed),
    "prepared": ("being prepared", _prepared),
    "step": ("a step", _step),
    "trial_failed": ("a trial", _trial_failed),
    "eval": ("an evaluation", _eval),
    "evidence": ("a connection", _evidence),
    "warning": ("a warning", _nothing),
    "goodbye": ("leaving", _nothing),
    "finished": ("the end", _finished),
    "leaving": ("leaving", _nothing),
    "back": ("being back", _nothing),
    "renew": ("its certificate", _nothing),
    "caught_up": ("having caught up", _nothing),
    "kept": ("what it keeps", _kept),
    "clock": ("its clock", _clock),
    "written": ("a text", _written),
    "unreadable": ("a checkpoint", _unreadable),
    "waits": ("whom it waits for", _waits),
    "scores": ("what contributions do", _scores),
}
"""Kind of a report -> (the report in words, its check)."""
