"""The values that all parts of a run share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ...job.data.facts import Facts
from ...job.schema import Job
from .. import events
from ..checkpoints.checkpoints import Checkpoints
from ..store.store import Store


@dataclass(kw_only=True)
class RunContext:
    """The context of a run. Only ``job`` and ``facts`` can change: the command ``set`` replaces them.

    ``term``: of this coordinator, which all of its orders carry. ``clock``: seconds, monotonic.
    """

    job: Job
    facts: Facts
    store: Store
    checkpoints: Checkpoints
    emit: events.Emit
    term: int = 1
    clock: Callable[[], float] = time.monotonic

    def replace_job(self, job: Job, facts: Facts) -> None:
        """Replace the job by one that a person has changed, and store it."""
        self.job, self.facts = job, facts
        self.store.put("job", job.model_dump_json())
        self.store.put("facts", facts.model_dump_json())
        self.checkpoints.keep = job.checkpoint.keep
