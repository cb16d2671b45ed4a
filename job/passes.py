"""``train.eval_epochs``: evaluations after passes over the data, converted to steps."""

from __future__ import annotations

from .schema import Job


def evaluated_by_steps(job: Job, samples: int) -> Job:
    """The job with ``eval_every`` instead of ``eval_epochs``: the number of steps of so many passes over ``samples``. A
    job without ``eval_epochs`` is returned unchanged."""
    if not job.train.eval_epochs:
        return job
    every = max(1, -(-job.train.eval_epochs * samples // job.train.batch))
    return job.model_copy(update={"train": job.train.model_copy(update={"eval_every": every})})
