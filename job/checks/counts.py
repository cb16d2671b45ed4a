"""Checks that need counts: the model's layers, the data's samples, the run's steps."""

from __future__ import annotations

from ...proto.errors import JobError
from ..data.facts import Facts
from ..schema import Job

AQSGD_ONCE = (
    "activations.forward: aqsgd sends changes since a sample's last visit, and with under two epochs there is none; "
    'allowed: run.epochs of 2 or more, or another codec (int8, or "auto": aqsgd where it can be)'
)


def uses_aqsgd(job: Job) -> bool:
    """Whether activations are sent by AQ-SGD; with a single stage, none are sent."""
    return job.parallel.stages != 1 and job.activations.forward.split(":")[0].strip() == "aqsgd"


def check_facts(job: Job, facts: Facts) -> None:
    """Checks that need the data and the model: samples for one batch, stages, epochs of AQ-SGD. JobError where one
    fails."""
    check_stages(job, len(facts.profile.layers))
    check_samples(job, facts.samples, facts.steps)


def check_stages(job: Job, layers: int) -> None:
    """JobError where the job has more stages than its model has layers."""
    stages = job.parallel.stages
    if stages != "auto" and stages > layers:
        raise JobError(
            f"parallel.stages = {stages} is more than the model's {layers} layers", f"write stages = {layers} or fewer"
        )


def check_samples(job: Job, samples: int, steps: int) -> None:
    """Checks that need only the numbers of training samples and steps, which are known before the model's profile.
    JobError where one fails."""
    if samples < 1:
        raise JobError(
            "the data has no training sample left beside the validation part", "write a smaller data.validation"
        )
    if uses_aqsgd(job) and steps * job.train.batch < 2 * samples:
        raise JobError(AQSGD_ONCE, f"run.steps = {steps} visits less than 2 x {samples} samples")
