"""The events of a run that people and scripts read (docs/reference.md): plain dictionaries, one function for each kind.

``time`` is seconds since the epoch; everything else is documented with the function that makes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ..job.chosen import every_of
from ..job.schema import Job
from .membership.signals import Announcement
from .store.rows import EvalRow, SetRow, StepRow

Event = dict[str, Any]
Emit = Callable[[Event], None]


def event(kind: str, **keys: Any) -> Event:
    """An event of this kind with the present time."""
    return {"event": kind, "time": time.time(), **keys}


def tee(*takers: Emit) -> Emit:
    """A function that gives each event to all takers."""

    def give(one: Event) -> None:
        for taker in takers:
            taker(one)

    return give


def listening(
    link: str, state: str, page: str | None = None, viewer: str | None = None, *, uses: int, life: float
) -> Event:
    """The coordinator accepts nodes. ``state`` is the run's folder or database; ``page``: the web page's address for
    the operator; ``viewer``: for everybody else; each has its token after the #, and is None without a page. ``uses``:
    how many nodes the link admits; ``life``: for how many seconds."""
    return event("listening", link=link, state=state, page=page, viewer=viewer, uses=uses, expires=time.time() + life)


def phase(name: str, why: str) -> Event:
    """The run's phase has changed: a phase as `status` shows it, or "stopping"."""
    return event("phase", phase=name, why=why)


def interrupted(step: int, checkpoint: int, why: str) -> Event:
    """The coordinator was told to end after ``step``; the same command resumes from the step ``checkpoint`` (0: no
    checkpoint). ``why``: the reason that prevented a last checkpoint."""
    return event("interrupted", step=step, checkpoint=checkpoint, lost=max(0, step - checkpoint), why=why)


def view(announced: Announcement, job: Job) -> Event:
    """A view is announced: who trains which layers, who is spare, which codecs, and why."""
    plan = announced.plan
    codecs = {
        "updates": job.updates.codec,
        "activations": job.activations.forward,
        "gradients": job.activations.backward,
        **plan.codecs,
    }
    return event(
        "view",
        view=announced.number,
        pipelines=[list(pipeline) for pipeline in plan.pipelines],
        stages=[list(stage) for stage in plan.stages],
        microbatches=list(plan.microbatches),
        spares=sorted(plan.spares),
        codecs=codecs,
        dense_rounds=job.updates.dense_rounds,
        round_every=every_of(job, plan.chosen) // job.updates.fragments,
        overlap=job.updates.overlap if plan.overlap is None else plan.overlap,
        step=announced.position.step,
        chosen=plan.chosen,
        why=announced.why,
    )


def step(row: StepRow, steps: int) -> Event:
    """A finished step, summed over the nodes; ``steps`` is how many the run will have."""
    return event(
        "step",
        step=row.step,
        steps=steps,
        view=row.view,
        loss=row.loss,
        samples=row.samples,
        seconds=row.seconds,
        tokens_per_second=row.tokens / row.seconds if row.seconds > 0 else 0.0,
        bytes_updates=row.bytes_updates,
        bytes_activations=row.bytes_activations,
        bytes_other=row.bytes_other,
        bytes_dense=row.bytes_dense,
        bytes_dense_updates=row.bytes_dense_updates,
        **({} if row.hit_rate is None else {"aqsgd_hit_rate": row.hit_rate}),
    )


def evaluation(row: EvalRow, sets: Sequence[SetRow] = ()) -> Event:
    """An evaluation; ``accuracy`` is None where nothing is counted. Of a job with ``eval.sets`` also what it found of
    each."""
    each = {"sets": {one.name: one.shown for one in sets}} if sets else {}
    return event("eval", step=row.step, loss=row.loss, accuracy=row.accuracy, **each)
