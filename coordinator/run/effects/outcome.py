"""How a run ended."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from ....proto.errors import RunFailed
from ... import events
from ...store.store import Store


@dataclass
class Outcome:
    """``finished`` is set when the run is over; then ``result`` is the event ``done``, or ``failure`` the error."""

    finished: asyncio.Event = field(default_factory=asyncio.Event)
    result: events.Event | None = None
    failure: RunFailed | None = None

    def done(self, result: events.Event) -> None:
        """The run has trained its last step."""
        self.result = result
        self.finished.set()

    def failed(self, why: str, hint: str) -> None:
        """The run cannot go on."""
        self.failure = RunFailed(why, hint)
        self.finished.set()


def done(store: Store, step: int, sent: int) -> events.Event:
    """The event ``done`` of a run that has trained ``step`` steps and sent ``sent`` bytes, from the database."""
    evals, checkpoints, totals = store.evals.newest(1), store.checkpoints.all(), store.steps.totals()
    began = float(store.get("began") or time.time())
    return events.event(
        "done",
        steps=step,
        eval_loss=evals[-1].loss if evals else None,
        accuracy=evals[-1].accuracy if evals else None,
        seconds=time.time() - began,
        samples=totals["samples"],
        checkpoint=checkpoints[-1].path if checkpoints else None,
        views=len(store.views.all()),
        bytes_total=sent,
        bytes_updates=totals["bytes_updates"],
        bytes_activations=totals["bytes_activations"],
        bytes_dense=totals["bytes_dense"],
        bytes_dense_updates=totals["bytes_dense_updates"],
    )
