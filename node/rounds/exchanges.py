"""From a view's job and plan to the exchange of a section."""

from __future__ import annotations

import math

from ...job.schema import Job
from ...scheduler import Plan
from ..state.sections.section import Section
from ..state.stage_state import codec_of, round_plan
from .arithmetic.exchange import Exchange
from .arithmetic.ways.phased import phases_of

CLOSING = "int8"
"""The codec of the closing rounds at the run's end: see node/training/modes/delta_mode.py."""


def exchange_of(
    job: Job,
    plan: Plan,
    section: Section,
    me: str,
    *,
    followed: bool = False,
    follows: bool = False,
    until: float = math.inf,
) -> Exchange:
    """The exchange of a section in a view, for the member ``me``; with ``follows``, for a spare that follows its place.
    ``until``: the last round with an outer step."""
    codec = (codec_of(plan, section.layout.section) or job.updates.codec) if job.updates.agreed else "none"
    phases = phases_of(codec)
    closing = CLOSING if job.updates.mode == "delta" and codec != "none" and not job.updates.secure else ""
    return Exchange(
        section,
        round_plan(plan, section.layout, job.updates, phases, followed, until if closing else math.inf),
        me,
        codec,
        dense_rounds=job.updates.dense_rounds,
        gradient=job.updates.mode == "gradient",
        seed=job.run.seed,
        outer=job.updates.outer_optimizer,
        robust=job.updates.robust_average,
        follows=follows,
        outer_until=until,
        closing=closing,
        secure=job.updates.secure and not follows,
    )
