"""The values that a recording is made of: everything that an event, an effect or the machine's state may hold."""

from __future__ import annotations

import dataclasses
from hashlib import blake2b
from typing import Any

from ...job.data.sampling import Mixture, Position
from ...proto.connections.patience import Watch
from ...scheduler.plans import Plan
from ...scheduler.trials import Trial, Tuning
from ..membership import questions, rules, state
from ..membership import signals as s
from ..membership.faults import standstill
from ..membership.resuming import handovers, last_checkpoint, learnt, resume
from ..membership.signals import effects, from_coordinator, from_nodes, from_people, values
from ..records import Records

_SIGNALS = (effects, from_coordinator, from_nodes, from_people, values)
_ROOMS = (*_SIGNALS, rules, state, learnt, questions, resume, handovers, last_checkpoint, standstill)
_KINDS = (
    one
    for room in _ROOMS
    for one in vars(room).values()
    if isinstance(one, type) and dataclasses.is_dataclass(one) and one.__module__ == room.__name__
)
VALUES = Records(*_KINDS, Mixture, Position, Watch, Plan, Tuning, Trial)
_LONGEST = 400


def event_plain(event: s.Input) -> Any:
    """An event as JSON values. Most events are heartbeats, so these are written as rows."""
    if isinstance(event, s.Beats):
        return [[one.name, one.session, one.ready, one.moved, one.idle_s] for one in event.heard]
    return VALUES.plain(event)


def event_of(plain: Any) -> s.Input:
    """The event from ``event_plain``. Raises Unreadable or TypeError."""
    if isinstance(plain, list):
        return s.Beats(tuple(s.Heard(*row) for row in plain))
    event: s.Input = VALUES.value(plain)
    return event


def effect_text(effect: s.Effect) -> str:
    """An effect as text, such that different effects have different texts: a long one (a view) is cut and a digest of
    the whole appended."""
    text = VALUES.text(effect)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... {blake2b(text.encode(), digest_size=8).hexdigest()}"
