"""``activations.forward = "auto"``: AQ-SGD where samples come at least twice, else another codec; and each link between
stages gets the least lossy codec, up to that one, that does not slow the step (``activations.by_link``).

The most lossy codec is decided once at a run's start, when the samples are counted; nodes and plans get that codec
instead of "auto". The plan of each view has the codec of each link. ``activations.backward = "auto"`` is int8 at most.
"""

from __future__ import annotations

from .schema import Job

AUTO = "auto"
TWICE, ONCE = "aqsgd:bits=4", "int8"
BACK = "int8"
"""For gradients, because no later message corrects their errors."""


def settled(job: Job, samples: int, steps: int) -> tuple[Job, str]:
    """(the job with a codec in place of "auto", a sentence where that codec is not AQ-SGD). A job without "auto" is
    returned unchanged.

    Args:
        samples, steps: of training, in the run.
    """
    if job.activations.forward != AUTO:
        return job, ""
    codec = TWICE if steps * job.train.batch >= 2 * samples else ONCE
    found = with_forward(job, codec)
    if codec == TWICE or job.parallel.stages == 1:  # with one stage no activations are sent
        return found, ""
    visits = steps * job.train.batch / max(1, samples)
    return found, (
        f'activations.forward = "auto" is {ONCE}: in {steps} steps a sample comes {visits:.2g} times, '
        "and aqsgd sends what has changed since it last came, from the second time on"
    )


def with_forward(job: Job, codec: str) -> Job:
    """The job with this codec instead of "auto"."""
    back = BACK if job.activations.backward == AUTO else job.activations.backward
    settled = job.activations.model_copy(update={"forward": codec, "backward": back, "by_link": True})
    return job.model_copy(update={"activations": settled})


def expected(epochs: int | None) -> str:
    """The codec that "auto" will probably become, before the samples are counted."""
    return ONCE if epochs == 1 else TWICE


def too_few(job: Job, samples: int) -> str:
    """A warning where one batch has more samples than there are; else empty."""
    batch = job.train.batch
    if samples >= batch:
        return ""
    many = f"{samples} training sample{'s' if samples != 1 else ''}"
    return (
        f"the data have {many}, and a batch takes {batch}: every step sees samples more than once. "
        "Give more text, a smaller model.context, or a smaller train.batch"
    )
