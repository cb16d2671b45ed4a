"""The membership machine's rules, from the job and the options."""

from __future__ import annotations

from ....job.chosen import every_of, microbatch_of
from ....job.data.facts import Facts
from ....job.schema import Job
from ...membership.resuming.handovers import residuals_of
from ...membership.rules import Rules
from ...planning.planner import data_bytes, layer_bytes, wanted_nodes
from .options import Options


def rules_of(job: Job, facts: Facts, options: Options) -> Rules:
    """The rules, which do not change during the run."""
    wanted, why = wanted_nodes(job)
    if options.min_nodes is not None and options.min_nodes > wanted:
        wanted, why = options.min_nodes, f"it begins with {options.min_nodes}"
    return Rules(
        mode=job.updates.mode,
        batch=job.train.batch,
        microbatch=microbatch_of(job, {}),
        seed=job.run.seed,
        samples=facts.drawn,
        layers=len(facts.profile.layers),
        wanted=wanted,
        wanted_why=why,
        checkpoint_every=job.checkpoint.every,
        round_every=every_of(job, {}) if job.updates.mode == "delta" and job.updates.agreed else 0,
        base=job.model.pretrained or "",
        residuals=residuals_of(job),
        eval_every=job.train.eval_every,
        evaluation=facts.evaluated / job.train.batch,
        give_up=options.give_up,
        layer_bytes=layer_bytes(job, facts.profile.layers),
        data_bytes=data_bytes(facts),
        **options.timing,
    )
