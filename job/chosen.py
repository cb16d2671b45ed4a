"""Job keys that say "auto": the plan of each view chooses their values.

Nodes and the coordinator use ``with_chosen``; a plan may choose only what the job leaves open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .schema import EVERY, INSIDE, Job

AUTO = "auto"
EVERY_KEY, RECOMPUTE_KEY, MICROBATCH_KEY = "updates.every", "train.recompute", "train.microbatch"
COUNTS = range(1, EVERY[-1] + 1)
INSIDE_KEY, OFFLOAD_KEY = "parallel.inside", "train.offload"
OFFLOADS = ("none", "moments", "optimizer", "parameters")
"""What a plan may choose for ``train.offload``."""
KINDS: Mapping[str, type] = {
    EVERY_KEY: int,
    RECOMPUTE_KEY: bool,
    MICROBATCH_KEY: int,
    INSIDE_KEY: str,
    OFFLOAD_KEY: str,
}


def left_open(job: Job) -> tuple[str, ...]:
    """The keys that the job leaves to the plan."""
    return tuple(key for key in KINDS if _value(job, key) == AUTO)


def with_chosen(job: Job, chosen: Mapping[str, Any]) -> Job:
    """The job with the plan's choices instead of "auto". A job without "auto" is returned as it is.

    parallel.inside stays: ``inside_of`` gives the choice.
    """
    tables: dict[str, Any] = {}
    for key, value in chosen.items():
        if key in KINDS and key != INSIDE_KEY:  # how stages are cut into sections follows from the job alone
            table, _, name = key.partition(".")
            tables[table] = tables.get(table, getattr(job, table)).model_copy(update={name: value})
    return job.model_copy(update=tables) if tables else job


def inside_of(job: Job, chosen: Mapping[str, Any]) -> str:
    """How devices of islands share their stages in a view."""
    return str(chosen.get(INSIDE_KEY, job.parallel.inside))


def every_of(job: Job, chosen: Mapping[str, Any]) -> int:
    """Steps between two rounds of one fragment in a view; the largest possible number where the view's plan has
    none."""
    every = chosen.get(EVERY_KEY, job.updates.every)
    return every if isinstance(every, int) else EVERY[-1]


def microbatch_of(job: Job, chosen: Mapping[str, Any]) -> int:
    """Samples of a microbatch in a view; 1 where the view's plan has none."""
    size = chosen.get(MICROBATCH_KEY, job.train.microbatch)
    return size if isinstance(size, int) else 1


def mistakes(job: Job, chosen: Mapping[str, Any]) -> Iterator[str]:
    """Sentences that say why these can't be a plan's choices for this job."""
    wanted = left_open(job)
    for key in wanted:
        if key not in chosen:
            yield f"its plan does not say {key}, which the job leaves to it"
    for key, value in chosen.items():
        if key not in wanted:
            yield f"its plan chooses {key}, which the job does not leave to it"
        elif type(value) is not KINDS[key] or not _possible(job, key, value):
            yield f"its plan has no possible {key}"
    if chosen.get(OFFLOAD_KEY) == "parameters" and chosen.get(RECOMPUTE_KEY, job.train.recompute) is not True:
        yield f'its plan has {OFFLOAD_KEY} = "parameters", which needs {RECOMPUTE_KEY} = true'
    if chosen.get(OFFLOAD_KEY) == "parameters" and job.train.compile:
        yield f'its plan has {OFFLOAD_KEY} = "parameters", which does not go with train.compile'
    every = chosen.get(EVERY_KEY)
    overlap = job.updates.overlap
    if type(every) is int and isinstance(overlap, int) and overlap > every:
        yield f"its plan has {EVERY_KEY} = {every}, and rounds are {overlap} steps in flight"


def _possible(job: Job, key: str, value: Any) -> bool:
    if key == MICROBATCH_KEY:
        return bool(value >= 1 and job.train.batch % value == 0)
    if key == INSIDE_KEY:
        return value in INSIDE
    if key == OFFLOAD_KEY:
        return value in OFFLOADS
    return key != EVERY_KEY or value in COUNTS


def _value(job: Job, key: str) -> Any:
    table, _, name = key.partition(".")
    return getattr(getattr(job, table), name)
